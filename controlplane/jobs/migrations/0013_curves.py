"""The numbers that stages report are kept by step."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0012_state_at"),
    ]

    operations = [
        migrations.CreateModel(
            name="Curves",
            fields=[
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="curves",
                        serialize=False,
                        to="jobs.attempt",
                    ),
                ),
                ("tail", models.JSONField(default=list)),
                ("kept", models.JSONField(default=dict)),
            ],
            options={"verbose_name_plural": "curves"},
        ),
    ]
