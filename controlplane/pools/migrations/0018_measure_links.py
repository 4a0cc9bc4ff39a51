"""Pools whose idle nodes measure the bandwidth from each other."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0017_mounts")]
    operations = [
        migrations.AddField(
            "pool",
            "measure_links",
            models.BooleanField(
                db_default=False,
                default=False,
                help_text="Idle nodes here measure the bandwidth from each other now and then, with 64 MiB each time.",
            ),
        ),
    ]
