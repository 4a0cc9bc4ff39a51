"""Events of promotions are told as job files say; refused and taken back ones also to owners who get mail about jobs."""

from django.db import migrations

TRIGGER = """
DROP TRIGGER job_event_notify ON jobs_event;
CREATE OR REPLACE FUNCTION yard_event_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    word text := CASE NEW.kind WHEN 'stop' THEN 'preempted' WHEN 'requeue' THEN 'requeued' ELSE NEW.kind END;
BEGIN
    PERFORM yard_job_notify(NEW.job_id, word, '', jsonb_build_object('event', word, 'stage', NEW.stage)
        || CASE WHEN word IN ('promoted', 'gate_refused', 'rolled_back')
           THEN jsonb_build_object('service', NEW.params->>'service', 'revision', NEW.params->'revision')
           ELSE '{}'::jsonb END);
    IF word = 'held_idle' THEN
        -- Its utilization_policy has its owner told, whoever else is.
        INSERT INTO notifications_notice (job_id, user_id, at, event)
        SELECT j.id, j.user_id, now(), word FROM jobs_job j WHERE j.id = NEW.job_id ON CONFLICT DO NOTHING;
    ELSIF word IN ('gate_refused', 'rolled_back') THEN
        INSERT INTO notifications_notice (job_id, user_id, at, event)
        SELECT j.id, j.user_id, now(), word FROM jobs_job j
        JOIN notifications_noticechoice c ON c.user_id = j.user_id WHERE j.id = NEW.job_id ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_event_notify AFTER INSERT ON jobs_event FOR EACH ROW
    WHEN (NEW.stage <> '' AND (NEW.kind IN ('requeue', 'held_idle', 'promoted', 'gate_refused', 'rolled_back')
                               OR NEW.kind = 'stop' AND NEW.params->>'why' = 'PREEMPTED'))
    EXECUTE FUNCTION yard_event_notify();
"""
TRIGGER_BACK = """
DROP TRIGGER job_event_notify ON jobs_event;
CREATE OR REPLACE FUNCTION yard_event_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    word text := CASE NEW.kind WHEN 'stop' THEN 'preempted' WHEN 'requeue' THEN 'requeued' ELSE NEW.kind END;
BEGIN
    PERFORM yard_job_notify(NEW.job_id, word, '', jsonb_build_object('event', word, 'stage', NEW.stage));
    IF word = 'held_idle' THEN
        INSERT INTO notifications_notice (job_id, user_id, at, event)
        SELECT j.id, j.user_id, now(), word FROM jobs_job j WHERE j.id = NEW.job_id ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_event_notify AFTER INSERT ON jobs_event FOR EACH ROW
    WHEN (NEW.stage <> '' AND (NEW.kind IN ('requeue', 'held_idle')
                               OR NEW.kind = 'stop' AND NEW.params->>'why' = 'PREEMPTED'))
    EXECUTE FUNCTION yard_event_notify();
"""


class Migration(migrations.Migration):
    dependencies = [("notifications", "0006_webhooks_of_budgets_and_chat_secrets")]

    operations = [migrations.RunSQL(TRIGGER, TRIGGER_BACK)]
