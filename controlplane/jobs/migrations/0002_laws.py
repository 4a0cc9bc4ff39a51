"""The database refuses what must not be: oversold devices, changed final states, rewritten events, phases that go back."""

from django.db import migrations

CLAIMS = """
CREATE FUNCTION yard_claims_opened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Devices are locked in one order, so that two placements cannot wait for each other.
    PERFORM 1 FROM fleet_device WHERE id IN (SELECT device_id FROM opened) ORDER BY id FOR UPDATE;
    IF EXISTS (
        SELECT 1 FROM opened o JOIN fleet_device d ON d.id = o.device_id
        WHERE d.mode = 'exclusive' AND d.kind <> 'cpu' AND o.closed_at IS NULL AND o.milli <> d.capacity_milli
    ) THEN
        RAISE EXCEPTION 'an exclusive device is claimed whole' USING ERRCODE = 'check_violation';
    END IF;
    UPDATE fleet_device d SET claimed_milli = d.claimed_milli + s.milli,
        claimed_memory_bytes = d.claimed_memory_bytes + s.memory_bytes
    FROM (SELECT device_id, sum(milli) AS milli, sum(memory_bytes) AS memory_bytes
          FROM opened WHERE closed_at IS NULL GROUP BY device_id) s
    WHERE d.id = s.device_id;
    RETURN NULL;
END $$;

CREATE FUNCTION yard_claims_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM before b JOIN after a ON a.id = b.id
        WHERE b.closed_at IS NOT NULL AND a.closed_at IS DISTINCT FROM b.closed_at
           OR a.device_id <> b.device_id OR a.milli <> b.milli OR a.memory_bytes <> b.memory_bytes
    ) THEN
        RAISE EXCEPTION 'a claim can only be closed, once' USING ERRCODE = 'check_violation';
    END IF;
    PERFORM 1 FROM fleet_device WHERE id IN (SELECT device_id FROM after) ORDER BY id FOR UPDATE;
    UPDATE fleet_device d SET claimed_milli = d.claimed_milli - s.milli,
        claimed_memory_bytes = d.claimed_memory_bytes - s.memory_bytes
    FROM (SELECT a.device_id, sum(a.milli) AS milli, sum(a.memory_bytes) AS memory_bytes
          FROM before b JOIN after a ON a.id = b.id
          WHERE b.closed_at IS NULL AND a.closed_at IS NOT NULL GROUP BY a.device_id) s
    WHERE d.id = s.device_id;
    RETURN NULL;
END $$;

CREATE TRIGGER claims_opened AFTER INSERT ON jobs_claim
    REFERENCING NEW TABLE AS opened FOR EACH STATEMENT EXECUTE FUNCTION yard_claims_opened();
CREATE TRIGGER claims_changed AFTER UPDATE ON jobs_claim
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION yard_claims_changed();
"""

CLAIMS_BACK = """
DROP TRIGGER claims_changed ON jobs_claim;
DROP TRIGGER claims_opened ON jobs_claim;
DROP FUNCTION yard_claims_changed();
DROP FUNCTION yard_claims_opened();
"""

FINAL = """
CREATE FUNCTION yard_final_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% % is % and cannot become %', TG_TABLE_NAME, OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER job_final BEFORE UPDATE OF state ON jobs_job FOR EACH ROW
    WHEN (OLD.state IN ('COMPLETED', 'FAILED', 'CANCELLED') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION yard_final_stays();
CREATE TRIGGER stage_final BEFORE UPDATE OF state ON jobs_stage FOR EACH ROW
    WHEN (OLD.state IN ('COMPLETED', 'FAILED', 'CANCELLED') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION yard_final_stays();

CREATE FUNCTION yard_ended_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% % has ended and cannot change', TG_TABLE_NAME, OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER attempt_ended BEFORE UPDATE ON jobs_attempt FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL AND (NEW.ended_at, NEW.cause, NEW.exit_code, NEW.epoch)
          IS DISTINCT FROM (OLD.ended_at, OLD.cause, OLD.exit_code, OLD.epoch))
    EXECUTE FUNCTION yard_ended_stays();
CREATE TRIGGER part_ended BEFORE UPDATE ON jobs_part FOR EACH ROW
    WHEN (NEW.phase < OLD.phase OR OLD.phase = 90 AND NEW.exit IS DISTINCT FROM OLD.exit)
    EXECUTE FUNCTION yard_ended_stays();
"""

FINAL_BACK = """
DROP TRIGGER part_ended ON jobs_part;
DROP TRIGGER attempt_ended ON jobs_attempt;
DROP FUNCTION yard_ended_stays();
DROP TRIGGER stage_final ON jobs_stage;
DROP TRIGGER job_final ON jobs_job;
DROP FUNCTION yard_final_stays();
"""

EVENTS = """
CREATE FUNCTION yard_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER event_append_only BEFORE UPDATE ON jobs_event FOR EACH ROW EXECUTE FUNCTION yard_append_only();
CREATE TRIGGER decision_append_only BEFORE UPDATE ON jobs_decision FOR EACH ROW EXECUTE FUNCTION yard_append_only();
"""

EVENTS_BACK = """
DROP TRIGGER decision_append_only ON jobs_decision;
DROP TRIGGER event_append_only ON jobs_event;
DROP FUNCTION yard_append_only();
"""

# A finished stage leaves the hot part of the table soon, and claims of devices are updated all the time: clean early.
VACUUM = """
ALTER TABLE jobs_stage SET (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 80);
ALTER TABLE jobs_part SET (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 80);
ALTER TABLE fleet_device SET (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 50);
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]
    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE jobs_job_number AS bigint; SELECT setval('jobs_job_number', 1, false);",
            "DROP SEQUENCE jobs_job_number;",
        ),
        migrations.RunSQL(CLAIMS, CLAIMS_BACK),
        migrations.RunSQL(FINAL, FINAL_BACK),
        migrations.RunSQL(EVENTS, EVENTS_BACK),
        migrations.RunSQL(VACUUM, migrations.RunSQL.noop),
    ]
