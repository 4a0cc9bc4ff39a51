"""Maintenance windows that recur, and reservations of nodes for projects, which operators plan."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of the tables and removes what they point at.
CASCADES = """
ALTER TABLE fleet_reservation
    ADD CONSTRAINT reservation_project FOREIGN KEY (project_id) REFERENCES access_project (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE fleet_reservation_nodes
    ADD CONSTRAINT reservation_of_nodes FOREIGN KEY (reservation_id) REFERENCES fleet_reservation (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT reservation_node FOREIGN KEY (node_id) REFERENCES fleet_node (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE fleet_reservation_users
    ADD CONSTRAINT reservation_of_users FOREIGN KEY (reservation_id) REFERENCES fleet_reservation (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT reservation_user FOREIGN KEY (user_id) REFERENCES access_user (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Gives the permissions to the roles; they are made now, and not by Django after all migrations."""
    config = apps.get_app_config("fleet")
    config.models_module = installed.get_app_config("fleet").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(
        content_type__app_label="fleet", content_type__model="reservation"
    )
    for group in apps.get_model("auth", "Group").objects.filter(name__in=roles.ROLES):
        group.permissions.add(*(one for one in found if f"fleet.{one.codename}" in roles.ROLES[group.name]))


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0008_service_accounts"),
        ("fleet", "0020_drain_modes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="maintenancewindow",
            name="cron",
            field=models.CharField(blank=True, db_default="", default="", max_length=100),
        ),
        migrations.AddField(
            model_name="maintenancewindow",
            name="lasts_s",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="maintenancewindow",
            name="time_zone",
            field=models.CharField(blank=True, db_default="UTC", default="UTC", max_length=63),
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("cron", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("time_zone", models.CharField(blank=True, db_default="UTC", default="UTC", max_length=63)),
                ("lasts_s", models.PositiveIntegerField(blank=True, null=True)),
                ("reason", models.CharField(max_length=300)),
                ("made_by", models.CharField(editable=False, max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("cancelled_by", models.CharField(blank=True, editable=False, max_length=150)),
                ("cancelled_at", models.DateTimeField(editable=False, null=True)),
                (
                    "name",
                    models.CharField(
                        max_length=63,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z",
                                "Use 1 to 63 lower-case letters, digits and hyphens; begin and end with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("nodes", models.ManyToManyField(db_constraint=False, related_name="reservations", to="fleet.node")),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reservations",
                        to="access.project",
                    ),
                ),
                (
                    "users",
                    models.ManyToManyField(
                        db_constraint=False, blank=True, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["starts_at", "id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("cancelled_at", None)), fields=["ends_at"], name="reservation_ahead"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gt", models.F("starts_at"))),
                        name="reservation_ends_after_it_starts",
                    )
                ],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
