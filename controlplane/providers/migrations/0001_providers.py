"""Providers, which start this cluster's agents in foreign engines, and the pilots that they have started."""

import uuid

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

import controlplane.providers.models
from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of the tables and removes what they point at.
CASCADES = """
ALTER TABLE providers_nodeprovider ADD CONSTRAINT provider_pool FOREIGN KEY (pool_id) REFERENCES pools_pool (id)
    ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE providers_pilot
    ADD CONSTRAINT pilot_provider FOREIGN KEY (provider_id) REFERENCES providers_nodeprovider (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT pilot_node FOREIGN KEY (node_id) REFERENCES fleet_node (id)
        ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT pilot_window FOREIGN KEY (window_id) REFERENCES fleet_maintenancewindow (id)
        ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Gives the permissions to the roles; they are made now, and not by Django after all migrations."""
    config = apps.get_app_config("providers")
    config.models_module = installed.get_app_config("providers").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="providers")
    for group in apps.get_model("auth", "Group").objects.filter(name__in=roles.ROLES):
        group.permissions.add(*(one for one in found if f"providers.{one.codename}" in roles.ROLES[group.name]))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("fleet", "0022_mounts"),
        ("pools", "0017_mounts"),
    ]

    operations = [
        migrations.CreateModel(
            name="NodeProvider",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z",
                                "Use 1 to 63 lower-case letters, digits and hyphens; begin and end with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("kind", models.CharField(help_text="The engine: slurm, command or local.", max_length=20)),
                (
                    "settings",
                    models.JSONField(blank=True, default=dict, help_text="What this kind of engine needs to know."),
                ),
                (
                    "shapes",
                    models.JSONField(
                        default=list, help_text="The machines that it brings: [{name, cpus, memory_gib, devices}]."
                    ),
                ),
                (
                    "min_nodes",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="So many nodes stay, also without work.",
                        validators=[django.core.validators.MaxValueValidator(1000)],
                    ),
                ),
                (
                    "max_nodes",
                    models.PositiveIntegerField(
                        default=1,
                        help_text="Never more nodes than these at once.",
                        validators=[django.core.validators.MaxValueValidator(1000)],
                    ),
                ),
                (
                    "hours",
                    models.FloatField(
                        default=1.0,
                        help_text="For how long each node is asked for; stages that may take longer do not run there.",
                        validators=[
                            django.core.validators.MinValueValidator(0.016666666666666666),
                            django.core.validators.MaxValueValidator(720.0),
                        ],
                    ),
                ),
                (
                    "budget_node_hours",
                    models.FloatField(
                        blank=True,
                        help_text="How many hours of nodes any 30 days may take; empty means any number.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1000000000.0),
                        ],
                    ),
                ),
                (
                    "idle_s",
                    models.PositiveIntegerField(
                        default=300,
                        help_text="A node without work for so long is given back.",
                        validators=[django.core.validators.MaxValueValidator(86400)],
                    ),
                ),
                (
                    "wait_s",
                    models.PositiveIntegerField(
                        default=86400,
                        help_text="A request that the engine has not granted after so long is withdrawn.",
                        validators=[
                            django.core.validators.MinValueValidator(60),
                            django.core.validators.MaxValueValidator(2592000),
                        ],
                    ),
                ),
                (
                    "enabled",
                    models.BooleanField(default=True, help_text="If not, its nodes drain, and none is asked for."),
                ),
                (
                    "tag",
                    models.CharField(
                        default=controlplane.providers.models.make_tag, editable=False, max_length=12, unique=True
                    ),
                ),
                ("condition", models.CharField(blank=True, default="", editable=False, max_length=400)),
                ("said", models.JSONField(default=list, editable=False)),
                ("condition_at", models.DateTimeField(editable=False, null=True)),
                ("failures", models.PositiveIntegerField(default=0, editable=False)),
                ("retry_at", models.DateTimeField(editable=False, null=True)),
                ("looked_at", models.DateTimeField(editable=False, null=True)),
                (
                    "pool",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="providers",
                        to="pools.pool",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Pilot",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("shape", models.CharField(max_length=63)),
                ("hours", models.FloatField()),
                ("label", models.CharField(max_length=60, unique=True)),
                ("handle", models.CharField(blank=True, default="", max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ASKED", "asked for"),
                            ("QUEUED", "in the queue"),
                            ("UP", "up"),
                            ("LEAVING", "leaving"),
                            ("GONE", "gone"),
                        ],
                        default="ASKED",
                        max_length=8,
                    ),
                ),
                (
                    "why",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("idle", "there was no work for it"),
                            ("ends", "its time is over"),
                            ("ended", "the engine ended it"),
                            ("never_came", "the engine does not know it"),
                            ("refused", "the engine refused it"),
                            ("waited", "the engine did not grant it in time"),
                            ("vanished", "the engine does not know it any more"),
                            ("disabled", "the provider was disabled"),
                            ("surplus", "there are more than may be"),
                        ],
                        default="",
                        max_length=12,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("up_at", models.DateTimeField(null=True)),
                ("joined_at", models.DateTimeField(null=True)),
                ("ends_at", models.DateTimeField(null=True)),
                ("leaving_at", models.DateTimeField(null=True)),
                ("gone_at", models.DateTimeField(null=True)),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="pilots",
                        to="fleet.node",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="pilots",
                        to="providers.nodeprovider",
                    ),
                ),
                (
                    "window",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="fleet.maintenancewindow",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
            },
        ),
        migrations.AddConstraint(
            model_name="nodeprovider",
            constraint=models.CheckConstraint(
                condition=models.Q(("min_nodes__lte", models.F("max_nodes"))), name="provider_nodes_in_range"
            ),
        ),
        migrations.AddConstraint(
            model_name="nodeprovider",
            constraint=models.CheckConstraint(
                condition=models.Q(("max_nodes__lte", 1000)), name="provider_nodes_bounded"
            ),
        ),
        migrations.AddConstraint(
            model_name="nodeprovider",
            constraint=models.CheckConstraint(
                condition=models.Q(("hours__gt", 0), ("hours__lte", 720.0)), name="provider_hours_in_range"
            ),
        ),
        migrations.AddIndex(
            model_name="pilot",
            index=models.Index(
                condition=models.Q(("state", "GONE"), _negated=True), fields=["provider"], name="pilot_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="pilot",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["ASKED", "QUEUED", "UP", "LEAVING", "GONE"])),
                name="pilot_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="pilot",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "GONE"), _negated=True), fields=("node",), name="pilot_once_per_node"
            ),
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
