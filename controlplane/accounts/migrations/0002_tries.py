"""Failures to sign in are counted in the database, for all web processes together."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("access", "0001_initial")]

    operations = [
        migrations.CreateModel(
            "Tries",
            [
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                (
                    "of",
                    models.CharField(
                        choices=[("pair", "Pair"), ("address", "Address"), ("name", "Name"), ("known", "Known")],
                        max_length=8,
                    ),
                ),
                ("failures", models.PositiveIntegerField(default=0)),
                ("last_at", models.DateTimeField(db_index=True)),
                ("until", models.DateTimeField(null=True)),
            ],
        )
    ]
