"""When a node, or all nodes of a pool, do not serve."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0005_hosts"),
        ("pools", "0003_user_limit"),
    ]

    operations = [
        migrations.CreateModel(
            name="MaintenanceWindow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=300)),
                ("made_by", models.CharField(editable=False, max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("cancelled_by", models.CharField(blank=True, editable=False, max_length=150)),
                ("cancelled_at", models.DateTimeField(editable=False, null=True)),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="windows",
                        to="fleet.node",
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="windows",
                        to="pools.pool",
                    ),
                ),
            ],
            options={
                "ordering": ["starts_at", "id"],
                "indexes": [
                    models.Index(condition=models.Q(("cancelled_at", None)), fields=["ends_at"], name="window_ahead")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gt", models.F("starts_at"))), name="window_ends_after_it_starts"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("node", None), ("pool__isnull", False)),
                            models.Q(("node__isnull", False), ("pool", None)),
                            _connector="OR",
                        ),
                        name="window_of_one",
                    ),
                ],
            },
        ),
    ]
