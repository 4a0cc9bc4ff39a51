"""The audit log. Rows are never changed, and are removed only once they are older than thirty days."""

import django.db.models.functions.datetime
from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER audit_append_only BEFORE UPDATE ON access_auditentry
    FOR EACH ROW EXECUTE FUNCTION yard_append_only();
CREATE TRIGGER audit_kept BEFORE DELETE ON access_auditentry
    FOR EACH ROW WHEN (OLD.at > now() - interval '30 days') EXECUTE FUNCTION yard_append_only();
"""
BACK = "DROP TRIGGER audit_kept ON access_auditentry; DROP TRIGGER audit_append_only ON access_auditentry;"


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0003_project_number"),
        # Made the function.
        ("jobs", "0002_laws"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), db_index=True)),
                ("actor", models.CharField(max_length=150)),
                ("actor_id", models.BigIntegerField(null=True)),
                (
                    "via",
                    models.CharField(
                        choices=[
                            ("api", "API"),
                            ("cli", "command line"),
                            ("page", "page"),
                            ("admin", "administration"),
                            ("system", "server"),
                        ],
                        max_length=8,
                    ),
                ),
                ("credential", models.CharField(blank=True, max_length=120)),
                ("action", models.CharField(max_length=60)),
                ("kind", models.CharField(max_length=40)),
                ("object_id", models.CharField(blank=True, max_length=64)),
                ("name", models.CharField(blank=True, max_length=200)),
                ("before", models.JSONField(default=dict)),
                ("after", models.JSONField(default=dict)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("request_id", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["actor", "-id"], name="audit_by_actor"),
                    models.Index(fields=["kind", "name", "-id"], name="audit_by_object"),
                    models.Index(fields=["action", "-id"], name="audit_by_action"),
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, BACK),
    ]
