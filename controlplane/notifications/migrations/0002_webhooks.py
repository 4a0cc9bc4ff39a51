"""Webhooks of projects. A trigger writes what they are to be told with the change of a job; operators may change them."""

import uuid

import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

import controlplane.accounts.models
from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of these tables and removes projects.
CASCADES = """
ALTER TABLE notifications_webhook ADD CONSTRAINT webhook_project
    FOREIGN KEY (project_id) REFERENCES access_project (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE notifications_webhookdelivery ADD CONSTRAINT webhook_delivery_webhook
    FOREIGN KEY (webhook_id) REFERENCES notifications_webhook (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""
TRIGGER = """
CREATE FUNCTION yard_job_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notifications_webhookdelivery (webhook_id, event, at, data)
    SELECT w.id, gen_random_uuid(), now(), jsonb_build_object('number', NEW.number, 'name', NEW.name, 'project', p.name,
        'pool', o.name, 'state', NEW.state, 'before', OLD.state, 'cause', NEW.cause)
    FROM notifications_webhook w JOIN access_project p ON p.id = NEW.project_id JOIN pools_pool o ON o.id = NEW.pool_id
    WHERE w.project_id = NEW.project_id AND jsonb_exists(w.states, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER job_change_told AFTER UPDATE ON jobs_job FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION yard_job_told();
"""
TRIGGER_BACK = "DROP TRIGGER job_change_told ON jobs_job; DROP FUNCTION yard_job_told();"


def grant(apps, schema_editor):
    """Lets operators change webhooks; the permission is made now, and not by Django after all migrations."""
    config = apps.get_app_config("notifications")
    config.models_module = installed.get_app_config("notifications").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    permission = apps.get_model("auth", "Permission")
    for group in apps.get_model("auth", "Group").objects.filter(name=roles.OPERATOR):
        group.permissions.add(
            permission.objects.get(content_type__app_label="notifications", codename="change_webhook")
        )


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0007_people_time_zone"),
        ("notifications", "0001_people_notices"),
        ("retention", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Webhook",
            fields=[
                ("ciphertext", models.BinaryField()),
                ("wrapped_key", models.BinaryField()),
                ("key_id", models.CharField(db_index=True, max_length=200)),
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, validators=[controlplane.accounts.models.slug])),
                ("url", models.CharField(max_length=500)),
                ("states", models.JSONField()),
                ("made_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("tried_at", models.DateTimeField(null=True)),
                ("retry_at", models.DateTimeField(null=True)),
                ("delivered_at", models.DateTimeField(null=True)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("fault", models.CharField(blank=True, default="", max_length=40)),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhooks",
                        to="access.project",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "name"), name="webhook_name_once_per_project")
                ],
            },
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event", models.UUIDField()),
                ("at", models.DateTimeField()),
                ("data", models.JSONField()),
                (
                    "webhook",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="notifications.webhook",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "webhook deliveries",
                "indexes": [models.Index(fields=["at"], name="webhook_delivery_at")],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGER, TRIGGER_BACK),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
