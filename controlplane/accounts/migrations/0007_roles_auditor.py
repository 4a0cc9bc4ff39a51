"""Lets auditors read the audit log."""

from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.accounts import roles


def install(apps: Any, schema_editor: Any) -> None:
    """Makes the permission, which Django otherwise makes after all migrations, and gives it to the group."""
    config = apps.get_app_config("access")
    config.models_module = installed.get_app_config("access").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    roles.install(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    dependencies = [("access", "0006_roles_audit"), ("access", "0004_roles")]
    operations = [migrations.RunPython(install, migrations.RunPython.noop)]
