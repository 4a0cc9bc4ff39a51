"""How long stages waited for which reason, and when attempts reported which step."""

from django.db import migrations, models

# The time since it was counted last goes to the first reason of then.
WAITED = """
CREATE FUNCTION yard_count_wait() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    code text := OLD.reasons->0->>'code';
    until timestamptz := CASE WHEN NEW.state = OLD.state THEN NEW.evaluated_at ELSE now() END;
BEGIN
    IF code IS NOT NULL AND OLD.waited_at < until THEN
        NEW.waited := OLD.waited || jsonb_build_object(code, round(
            coalesce((OLD.waited->>code)::numeric, 0) + extract(epoch FROM until - OLD.waited_at), 3));
    END IF;
    NEW.waited_at := CASE WHEN NEW.state IN ('HELD', 'PENDING') THEN greatest(until, OLD.waited_at) END;
    RETURN NEW;
END $$;
CREATE TRIGGER stage_waited BEFORE UPDATE ON jobs_stage FOR EACH ROW
    WHEN (OLD.state IN ('HELD', 'PENDING')
          AND (NEW.state <> OLD.state OR NEW.evaluated_at IS DISTINCT FROM OLD.evaluated_at))
    EXECUTE FUNCTION yard_count_wait();
"""
WAITED_BACK = """
DROP TRIGGER stage_waited ON jobs_stage;
DROP FUNCTION yard_count_wait();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0036_signals")]

    operations = [
        migrations.AddField("stage", "waited", models.JSONField(db_default={}, default=dict, editable=False)),
        migrations.AddField("stage", "waited_at", models.DateTimeField(null=True, editable=False)),
        migrations.AddField("curves", "marks", models.JSONField(db_default=[], default=list)),
        migrations.RunSQL(WAITED, WAITED_BACK),
    ]
