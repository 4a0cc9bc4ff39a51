"""Templates of job files; operators may change all of them."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

import controlplane.jobs.written
from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of this table and removes projects.
CASCADES = """
ALTER TABLE job_templates_jobtemplate ADD CONSTRAINT job_template_project
    FOREIGN KEY (project_id) REFERENCES access_project (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Lets operators change templates; the permission is made now, and not by Django after all migrations."""
    config = apps.get_app_config("job_templates")
    config.models_module = installed.get_app_config("job_templates").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    permission = apps.get_model("auth", "Permission")
    for group in apps.get_model("auth", "Group").objects.filter(name=roles.OPERATOR):
        group.permissions.add(
            permission.objects.get(content_type__app_label="job_templates", codename="change_jobtemplate")
        )


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("access", "0008_service_accounts"),
        ("retention", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobTemplate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z",
                                "Use 1 to 63 lower-case letters, digits and hyphens; begin and end with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("title", models.CharField(max_length=100)),
                ("description", models.TextField(blank=True)),
                ("parameters", controlplane.jobs.written.WrittenField()),
                ("job", controlplane.jobs.written.WrittenField()),
                ("made_by", models.CharField(max_length=150)),
                ("changed_at", models.DateTimeField()),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="job_templates",
                        to="access.project",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "name"), name="job_template_once_per_project", nulls_distinct=False
                    )
                ],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
