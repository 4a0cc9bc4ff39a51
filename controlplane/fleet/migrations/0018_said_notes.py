"""What alarms, nodes and devices say, in clauses."""

from django.db import migrations, models

# What an agent quarantined was known by its words, and is known by the code in its clauses from now on.
QUARANTINED = """
UPDATE fleet_device SET health_said = jsonb_build_array(jsonb_build_object('code', 'Coded', 'params', jsonb_build_object(
    'code', 'QUARANTINED', 'why', jsonb_build_object('text', substr(health_reason, 13), 'said', '[]'::jsonb))))
WHERE health = 'QUARANTINED' AND health_reason LIKE 'QUARANTINED %%'
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0017_celery_task_record")]
    operations = [
        migrations.AddField("alarm", "said", models.JSONField(db_default=[], default=list)),
        migrations.AddField("node", "reason_said", models.JSONField(db_default=[], default=list, editable=False)),
        migrations.AddField("device", "health_said", models.JSONField(db_default=[], default=list, editable=False)),
        migrations.RunSQL([(QUARANTINED, [])], migrations.RunSQL.noop),
    ]
