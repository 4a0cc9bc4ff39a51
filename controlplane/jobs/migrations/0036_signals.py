"""The signal that was sent last to a part, and how many were."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0035_arrays")]

    operations = [
        migrations.AddField("part", "signal", models.CharField(db_default="", default="", max_length=10)),
        migrations.AddField("part", "signal_rev", models.PositiveIntegerField(db_default=0, default=0)),
    ]
