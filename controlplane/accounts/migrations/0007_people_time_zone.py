"""The time zone that a user's pages are shown in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0006_secrets"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="time_zone",
            field=models.CharField(blank=True, db_default="", default="", max_length=64, verbose_name="time zone"),
        ),
    ]
