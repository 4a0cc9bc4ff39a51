"""The secrets of projects, and who of those that run the cluster may delete them."""

import uuid

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles


def grant(apps, schema_editor):
    """Lets operators delete secrets; the permission is made now, and not by Django after all migrations."""
    config = apps.get_app_config("access")
    config.models_module = installed.get_app_config("access").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    permission = apps.get_model("auth", "Permission")
    for group in apps.get_model("auth", "Group").objects.filter(name=roles.OPERATOR):
        group.permissions.add(permission.objects.get(content_type__app_label="access", codename="delete_secret"))


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0005_people_device_codes"),
    ]

    operations = [
        migrations.CreateModel(
            name="Secret",
            fields=[
                ("ciphertext", models.BinaryField()),
                ("wrapped_key", models.BinaryField()),
                ("key_id", models.CharField(db_index=True, max_length=200)),
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        max_length=128,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z_][A-Za-z0-9_]{0,127}\\Z",
                                "Use 1 to 128 letters, digits and _; begin with no digit.",
                            )
                        ],
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("updated_by", models.CharField(max_length=150)),
                ("updated_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField(null=True)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="secrets", to="access.project"
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "name"), name="secret_name_once_per_project")
                ],
            },
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
