"""How long logs are is known without reading their spans; what went because it was old is known too."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

FILL = """
SET LOCAL statement_timeout = 0;
INSERT INTO jobs_partlog (part_id, project_id, size_bytes, written_at)
SELECT p.id, j.project_id, sum(l.size), coalesce(p.ended_at, now()) FROM jobs_logspan l JOIN jobs_part p ON p.id = l.part_id
JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
GROUP BY p.id, j.project_id;
UPDATE jobs_bundle SET used_at = created_at;
SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0027_log_spans"), ("access", "0003_project_number")]
    operations = [
        migrations.AddField(
            "job",
            "events_gone",
            models.PositiveIntegerField(
                db_default=0, help_text="How many of its first events went because they were old."
            ),
        ),
        migrations.AddField(
            "bundle",
            "used_at",
            models.DateTimeField(
                db_default=Now(),
                help_text="When it was uploaded or asked for last, or a job began to need it, to an hour.",
            ),
        ),
        migrations.CreateModel(
            name="PartLog",
            fields=[
                (
                    "part",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="log",
                        serialize=False,
                        to="jobs.part",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="access.project",
                    ),
                ),
                ("size_bytes", models.BigIntegerField()),
                ("written_at", models.DateTimeField()),
                ("gone_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddIndex(
            "partlog",
            models.Index(
                fields=["project", "written_at"], name="log_of_project", condition=models.Q(gone_at__isnull=True)
            ),
        ),
        migrations.AddIndex(
            "job",
            models.Index(fields=["project", "ended_at"], name="job_ended", condition=models.Q(ended_at__isnull=False)),
        ),
        migrations.AddIndex(
            "job",
            models.Index(
                fields=["project", "ended_at"],
                name="job_with_events",
                condition=models.Q(ended_at__isnull=False, events_gone=0),
            ),
        ),
        migrations.AddIndex(
            "job", models.Index(fields=["bundle"], name="job_of_bundle", condition=~models.Q(bundle=""))
        ),
    ]
