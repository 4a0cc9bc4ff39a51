"""What parts hold of their nodes as a whole, a cause for those that took up too much disk space, and the change feed."""

from importlib import import_module

from django.db import migrations, models

from scheduler.core.model.lifecycle import Cause

earlier = import_module("controlplane.jobs.migrations.0022_unfit")
CHOICES = [(cause, cause) for cause in Cause]
SEEN = earlier.SEEN + earlier.UNFIT + ", {0}.mounts"
AMOUNTS = ", {0}.disk_bytes, {0}.disk_total_bytes, {0}.network_mbps"


class Migration(migrations.Migration):
    dependencies = [("jobs", "0048_stop_devices"), ("fleet", "0025_node_amounts")]
    operations = [
        migrations.AddField("part", "disk_bytes", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("part", "disk_mbps", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("part", "network_mbps", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddConstraint(
            "part", models.CheckConstraint(condition=models.Q(("disk_bytes__gte", 0)), name="part_disk_not_negative")
        ),
        *(
            migrations.AlterField(model, field, models.CharField(blank=True, choices=CHOICES, max_length=20))
            for model, field in (("attempt", "cause"), ("attempt", "stop_why"), ("stage", "cause"))
        ),
        migrations.RunSQL(earlier.created(SEEN + AMOUNTS), earlier.created(SEEN)),
    ]
