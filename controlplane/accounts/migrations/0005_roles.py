"""Makes the groups of the roles; whoever was staff keeps what they could do, as operator and accountant."""

from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.accounts import roles

LABELS = ("access", "pools", "fleet", "jobs", "simulations", "admin", "auth")


def install(apps: Any, schema_editor: Any) -> None:
    """Makes the permissions, which Django otherwise makes after all migrations, and the groups that have them."""
    for label in LABELS:
        config = apps.get_app_config(label)
        config.models_module = installed.get_app_config(label).models_module
        create_permissions(config, verbosity=0, apps=apps)
        config.models_module = None
    group = apps.get_model("auth", "Group")
    roles.install(group, apps.get_model("auth", "Permission"))
    kept = group.objects.filter(name__in=[roles.OPERATOR, roles.ACCOUNTANT])
    for user in apps.get_model("access", "User").objects.filter(is_staff=True):
        user.groups.add(*kept)


def remove(apps: Any, schema_editor: Any) -> None:
    """Takes the groups away again; ``is_staff`` was not touched."""
    apps.get_model("auth", "Group").objects.filter(name__in=list(roles.ROLES)).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0004_roles_audit"),
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("fleet", "0016_roles_permissions"),
        ("pools", "0011_roles_permissions"),
        ("jobs", "0027_log_spans"),
        ("simulations", "0001_initial"),
    ]
    operations = [migrations.RunPython(install, remove)]
