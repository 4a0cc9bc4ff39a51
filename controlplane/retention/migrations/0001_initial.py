"""What projects chose of how long their records are kept, and what was removed when; the roles may see to it."""

import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles


def install(apps, schema_editor):
    """Makes the permissions, which Django otherwise makes after all migrations, and gives them to the roles."""
    config = apps.get_app_config("retention")
    config.models_module = installed.get_app_config("retention").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    roles.install(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("access", "0005_roles"),
    ]

    operations = [
        migrations.CreateModel(
            name="Removal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
                ("went", models.JSONField()),
                (
                    "project",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="access.project"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Override",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=20)),
                ("days", models.PositiveIntegerField(blank=True, help_text="Empty: as for all projects.", null=True)),
                (
                    "log_bytes",
                    models.BigIntegerField(
                        blank=True, help_text="Of logs: how many bytes the project may have of ended stages.", null=True
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="retention", to="access.project"
                    ),
                ),
            ],
            options={
                "ordering": ["project__name", "kind"],
                "constraints": [models.UniqueConstraint(fields=("project", "kind"), name="retention_once")],
            },
        ),
        migrations.RunPython(install, migrations.RunPython.noop),
    ]
