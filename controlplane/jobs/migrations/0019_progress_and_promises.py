"""Progress wakes nobody until it moves the predicted end; first promises are kept."""

from django.db import migrations, models

DROP = "DROP TRIGGER stage_changed ON jobs_stage;"
CREATE = """
CREATE TRIGGER stage_changed AFTER UPDATE ON jobs_stage FOR EACH ROW
    WHEN ((OLD.job_id, OLD.name, OLD.kind, OLD.state, OLD.request, OLD.max_attempts, OLD.attempt_count, OLD.failures,
           OLD.preemptions, OLD.held_by, OLD.begin_at, OLD.retry_at, OLD.eligible_at, OLD.promise{more_old})
          IS DISTINCT FROM
          (NEW.job_id, NEW.name, NEW.kind, NEW.state, NEW.request, NEW.max_attempts, NEW.attempt_count, NEW.failures,
           NEW.preemptions, NEW.held_by, NEW.begin_at, NEW.retry_at, NEW.eligible_at, NEW.promise{more_new}))
    EXECUTE FUNCTION yard_stage_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0018_changes")]
    operations = [
        migrations.AddField(
            "attempt",
            "progress_share",
            models.FloatField(
                help_text="The share of its work that was done when that last moved its predicted end.", null=True
            ),
        ),
        migrations.AddField(
            "attempt",
            "progress_at",
            models.DateTimeField(help_text="When that share was reported.", null=True),
        ),
        migrations.AddField("stage", "first_promise", models.JSONField(null=True)),
        migrations.RunSQL(
            DROP + CREATE.format(more_old="", more_new=""),
            DROP + CREATE.format(more_old=", OLD.progress", more_new=", NEW.progress"),
        ),
    ]
