"""Since when a stage is in its state; and jobs of which nothing runs because it is paused say so."""

from django.db import migrations, models

SINCE = """
UPDATE jobs_stage s SET state_at = CASE s.state
    WHEN 'STOPPING' THEN a.stop_at WHEN 'RUNNING' THEN a.started_at WHEN 'STARTING' THEN a.created_at
    WHEN 'PENDING' THEN coalesce(a.ended_at, s.eligible_at) ELSE s.ended_at END
FROM jobs_stage t LEFT JOIN LATERAL
    (SELECT * FROM jobs_attempt WHERE stage_id = t.id ORDER BY number DESC LIMIT 1) a ON true
WHERE t.id = s.id
"""
PAUSED = """
UPDATE jobs_job j SET state = 'SUSPENDED' WHERE state = 'RUNNING'
AND EXISTS (SELECT FROM jobs_stage WHERE job_id = j.id AND state = 'SUSPENDED')
AND NOT EXISTS (SELECT FROM jobs_stage WHERE job_id = j.id AND state IN ('STARTING', 'RUNNING'))
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_as_written"),
    ]

    operations = [
        migrations.AddField(model_name="stage", name="state_at", field=models.DateTimeField(null=True)),
        migrations.RunSQL(SINCE, migrations.RunSQL.noop),
        migrations.RunSQL(PAUSED, migrations.RunSQL.noop),
    ]
