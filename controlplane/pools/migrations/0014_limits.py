"""How much one user may have at once. Accountants set it; operators and auditors see it."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of the table and removes what it points at.
CASCADES = """
ALTER TABLE pools_limit
    ADD CONSTRAINT limit_pool FOREIGN KEY (pool_id) REFERENCES pools_pool (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT limit_project FOREIGN KEY (project_id) REFERENCES access_project (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT limit_user FOREIGN KEY (user_id) REFERENCES access_user (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Gives the permissions to the roles; they are made now, and not by Django after all migrations."""
    config = apps.get_app_config("pools")
    config.models_module = installed.get_app_config("pools").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(
        content_type__app_label="pools", content_type__model="limit"
    )
    for group in apps.get_model("auth", "Group").objects.filter(name__in=roles.ROLES):
        group.permissions.add(*(one for one in found if f"pools.{one.codename}" in roles.ROLES[group.name]))


def points_at(model):
    return models.ForeignKey(
        blank=True,
        db_constraint=False,
        null=True,
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to=model,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0007_people_time_zone"),
        ("pools", "0013_leftovers_restricted"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "running",
                    models.PositiveIntegerField(
                        blank=True, help_text="How many stages may run at once; others wait.", null=True
                    ),
                ),
                (
                    "waiting",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many stages may wait; a submission beyond that is refused.",
                        null=True,
                    ),
                ),
                (
                    "devices",
                    models.FloatField(
                        blank=True,
                        help_text="How many devices other than CPUs may be held at once; stages beyond that wait.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1000000),
                        ],
                    ),
                ),
                ("pool", points_at("pools.pool")),
                ("project", points_at("access.project")),
                ("user", points_at(settings.AUTH_USER_MODEL)),
            ],
            options={
                "ordering": ["pool__name", "project__name", "user__username"],
                "constraints": [
                    models.UniqueConstraint(fields=("pool", "project", "user"), name="limit_once", nulls_distinct=False)
                ],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
