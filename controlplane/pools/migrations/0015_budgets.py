"""How many device-hours a project may use in a period. Accountants set it; operators and auditors see it."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of the table and removes what it points at.
CASCADES = """
ALTER TABLE pools_budget
    ADD CONSTRAINT budget_project FOREIGN KEY (project_id) REFERENCES access_project (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Gives the permissions to the roles; they are made now, and not by Django after all migrations."""
    config = apps.get_app_config("pools")
    config.models_module = installed.get_app_config("pools").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(
        content_type__app_label="pools", content_type__model="budget"
    )
    for group in apps.get_model("auth", "Group").objects.filter(name__in=roles.ROLES):
        group.permissions.add(*(one for one in found if f"pools.{one.codename}" in roles.ROLES[group.name]))


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0007_people_time_zone"),
        ("pools", "0014_limits"),
    ]

    operations = [
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        blank=True, help_text="Such as gpu; empty for all devices other than CPUs.", max_length=20
                    ),
                ),
                (
                    "normalised",
                    models.BooleanField(
                        default=False,
                        help_text="Counts devices by what they are worth beside an A100: an H100 as more than one, a T4 as less.",
                    ),
                ),
                (
                    "period",
                    models.CharField(
                        choices=[
                            ("month", "each month"),
                            ("quarter", "each quarter"),
                            ("dates", "from a day to a day"),
                        ],
                        default="month",
                        max_length=8,
                    ),
                ),
                (
                    "first_day",
                    models.DateField(blank=True, help_text="Only from a day to a day: the first, in UTC.", null=True),
                ),
                (
                    "last_day",
                    models.DateField(blank=True, help_text="Only from a day to a day: the last, in UTC.", null=True),
                ),
                (
                    "hours",
                    models.FloatField(
                        help_text="Device-hours in the period; of cpu, hours of one core.",
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1000000000),
                        ],
                    ),
                ),
                (
                    "at_end",
                    models.CharField(
                        choices=[
                            ("notify", "leads are told"),
                            ("hold", "nothing more starts"),
                            ("stop", "nothing more starts, and what runs is stopped"),
                        ],
                        default="notify",
                        help_text="What happens when they are used up. What runs is asked to save before it is stopped.",
                        max_length=8,
                    ),
                ),
                ("used_hours", models.FloatField(default=0, editable=False)),
                ("counted_at", models.DateTimeField(editable=False, null=True)),
                ("until_at", models.DateTimeField(editable=False, null=True)),
                ("told", models.PositiveSmallIntegerField(default=0, editable=False)),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="access.project",
                    ),
                ),
            ],
            options={
                "ordering": ["project__name", "kind", "normalised", "period", "first_day"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "kind", "normalised", "period", "first_day", "last_day"),
                        name="budget_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
