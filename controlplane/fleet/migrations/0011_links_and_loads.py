"""Which devices their links join, and how busy devices and nodes are."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0010_natural_order"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="busy",
            field=models.FloatField(
                editable=False, help_text="Mean utilisation of late, 0 to 1; null: untold.", null=True
            ),
        ),
        migrations.AddField(
            model_name="device",
            name="link_group",
            field=models.PositiveSmallIntegerField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="load",
            field=models.FloatField(
                default=0.0, editable=False, help_text="0 idle, 1 full, more: work queues or stalls."
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="fetch_gbps",
            field=models.FloatField(editable=False, help_text="Gbit/s, measured; null before any was.", null=True),
        ),
        migrations.AddField(
            model_name="host",
            name="means",
            field=models.JSONField(default=dict, editable=False),
        ),
        migrations.AddField(
            model_name="host",
            name="weighed_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        # Groups are worked out when an inventory comes: every agent is asked for its own anew.
        migrations.RunSQL("UPDATE fleet_node SET inventory_hash = ''", migrations.RunSQL.noop),
    ]
