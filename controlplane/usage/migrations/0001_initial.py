"""The usage ledger, its meters and prices; the roles may see to them. The first run of the task fills the ledger."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles


def install(apps, schema_editor):
    """Makes the permissions, which Django otherwise makes after all migrations, and gives them to the roles."""
    config = apps.get_app_config("usage")
    config.models_module = installed.get_app_config("usage").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    roles.install(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("access", "0007_people_time_zone"),
        ("jobs", "0034_said_notes"),
        ("pools", "0013_leftovers_restricted"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="LedgerMark",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("measured_until", models.DateTimeField()),
                ("changes_until", models.DateTimeField()),
                ("waiting", models.JSONField(default=list)),
            ],
        ),
        migrations.CreateModel(
            name="LedgerDay",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("built_at", models.DateTimeField(null=True)),
                ("is_due", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["-day"],
                "indexes": [models.Index(condition=models.Q(("is_due", True)), fields=["day"], name="ledger_day_due")],
            },
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(help_text="Such as gpu; of cpu the price is for one core.", max_length=20)),
                (
                    "model",
                    models.CharField(
                        blank=True,
                        help_text="Part of the model's name, such as H100; empty: all others of the kind.",
                        max_length=120,
                    ),
                ),
                (
                    "per_device_hour",
                    models.DecimalField(
                        decimal_places=4,
                        help_text="In the currency of the installation, YARD_CURRENCY.",
                        max_digits=12,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "valid_from",
                    models.DateField(help_text="The first day, in UTC; a later price of the same takes its place."),
                ),
            ],
            options={
                "ordering": ["kind", "model", "-valid_from"],
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "model", "valid_from"), name="price_once_per_day"),
                    models.CheckConstraint(condition=models.Q(("per_device_hour__gte", 0)), name="price_not_negative"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ClaimMeter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("samples", models.PositiveIntegerField(default=0)),
                ("known_ms", models.BigIntegerField(default=0)),
                ("busy_ms", models.BigIntegerField(default=0)),
                ("powered_ms", models.BigIntegerField(default=0)),
                ("millijoules", models.BigIntegerField(default=0)),
                ("most_use", models.FloatField(null=True)),
                ("most_memory_bytes", models.BigIntegerField(null=True)),
                (
                    "claim",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="meters", to="jobs.claim"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("claim", "day"), name="meter_once_per_claim_and_day")],
            },
        ),
        migrations.CreateModel(
            name="LedgerEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("kind", models.CharField(max_length=20)),
                ("model", models.CharField(blank=True, max_length=120)),
                ("allocated_ms", models.BigIntegerField(default=0)),
                ("charged_ms", models.BigIntegerField(default=0)),
                ("known_ms", models.BigIntegerField(default=0)),
                ("busy_ms", models.BigIntegerField(default=0)),
                ("preempted_ms", models.BigIntegerField(default=0)),
                ("failed_ms", models.BigIntegerField(default=0)),
                ("powered_ms", models.BigIntegerField(default=0)),
                ("millijoules", models.BigIntegerField(default=0)),
                ("attempts", models.PositiveIntegerField(default=0)),
                (
                    "pool",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.pool"),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="access.project"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "ledger entries",
                "ordering": ["-day", "project__name"],
                "indexes": [models.Index(fields=["project", "day"], name="ledger_of_project")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("day", "project", "user", "pool", "kind", "model"), name="ledger_entry_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("busy_ms__gte", 0),
                            ("busy_ms__lte", models.F("known_ms")),
                            ("known_ms__lte", models.F("allocated_ms")),
                        ),
                        name="ledger_busy_is_known_is_allocated",
                    ),
                ],
            },
        ),
        migrations.RunPython(install, migrations.RunPython.noop),
    ]
