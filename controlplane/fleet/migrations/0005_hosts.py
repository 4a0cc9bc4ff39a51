"""The newest measurement of each host, and what the devices of a part drew so far."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0004_container_engine"),
    ]

    operations = [
        migrations.CreateModel(
            name="Host",
            fields=[
                (
                    "node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="host",
                        serialize=False,
                        to="fleet.node",
                    ),
                ),
                ("interfaces", models.JSONField(default=list, editable=False)),
                ("disks", models.JSONField(default=list, editable=False)),
                ("file_systems", models.JSONField(default=list, editable=False)),
                ("at", models.DateTimeField(editable=False, null=True)),
                ("counters", models.JSONField(default=dict, editable=False)),
                ("per_s", models.JSONField(default=dict, editable=False)),
                ("free_bytes", models.JSONField(default=dict, editable=False)),
                ("pressure", models.JSONField(default=dict, editable=False)),
            ],
        ),
        migrations.RunSQL(
            "ALTER TABLE fleet_part_sample ADD COLUMN energy_j jsonb",
            "ALTER TABLE fleet_part_sample DROP COLUMN energy_j",
        ),
    ]
