"""Measured bandwidths between nodes, and what the scheduler reads of them."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0025_node_amounts")]
    operations = [
        migrations.AddField(
            "node",
            "measures_from",
            models.ForeignKey(
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="fleet.node",
            ),
        ),
        migrations.AddField("node", "measures_at", models.DateTimeField(editable=False, null=True)),
        migrations.CreateModel(
            name="NodeLink",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gbps", models.FloatField()),
                ("mean_gbps", models.FloatField()),
                ("at", models.DateTimeField()),
                (
                    "source",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="links_to", to="fleet.node"
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="links_from", to="fleet.node"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("target", "source"), name="node_link_once"),
                    models.CheckConstraint(
                        condition=models.Q(("gbps__gt", 0), ("mean_gbps__gt", 0)), name="node_link_carries"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source", models.F("target")), _negated=True),
                        name="node_link_between_two",
                    ),
                ],
            },
        ),
    ]
