"""What nodes have as a whole for their stages: disk space and network bandwidth."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0024_node_is_site")]
    operations = [
        migrations.AddField(
            "node",
            "disk_total_bytes",
            models.BigIntegerField(
                db_default=0, default=0, editable=False, help_text="The size of the disk on which its stages work."
            ),
        ),
        migrations.AddField(
            "node",
            "disk_bytes",
            models.BigIntegerField(
                db_default=0, default=0, editable=False, help_text="How much of that disk stages may ask for in all."
            ),
        ),
        migrations.AddField(
            "node",
            "network_mbps",
            models.PositiveIntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="MB/s of its fastest network interface; 0 if unknown.",
            ),
        ),
    ]
