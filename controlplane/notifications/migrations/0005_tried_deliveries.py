"""How deliveries to webhooks went, and webhooks that are switched off."""

import django.db.models.deletion
from django.db import migrations, models

# By the database, as for what waits: the release before this one knows nothing of this table.
CASCADE = """
ALTER TABLE notifications_trieddelivery ADD CONSTRAINT tried_delivery_webhook
    FOREIGN KEY (webhook_id) REFERENCES notifications_webhook (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


class Migration(migrations.Migration):
    dependencies = [("notifications", "0004_notify")]

    operations = [
        migrations.AddField("webhook", "is_active", models.BooleanField(db_default=True, default=True)),
        migrations.AddField("webhookdelivery", "resent_at", models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="TriedDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event", models.UUIDField()),
                ("at", models.DateTimeField()),
                ("data", models.JSONField()),
                ("tries", models.PositiveIntegerField()),
                ("tried_at", models.DateTimeField()),
                ("took_s", models.FloatField()),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("fault", models.CharField(blank=True, max_length=40)),
                (
                    "webhook",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tried",
                        to="notifications.webhook",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "tried deliveries",
                "ordering": ["-tried_at", "-id"],
                "indexes": [models.Index(fields=["tried_at"], name="tried_delivery_at")],
                "constraints": [models.UniqueConstraint(fields=("webhook", "event"), name="tried_delivery_once")],
            },
        ),
        migrations.RunSQL(CASCADE, migrations.RunSQL.noop),
    ]
