"""The change feed: of which stages and nodes something changed that the scheduler reads."""

import django.db.models.functions.datetime
from django.db import migrations, models

FEED = """
ALTER TABLE jobs_change ALTER COLUMN xact SET DEFAULT pg_current_xact_id()::text::bigint;

CREATE FUNCTION yard_stages_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT DISTINCT id FROM changed;
    RETURN NULL;
END $$;
CREATE TRIGGER stages_added AFTER INSERT ON jobs_stage
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_stages_changed();
CREATE FUNCTION yard_stage_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER stage_changed AFTER UPDATE ON jobs_stage FOR EACH ROW
    WHEN ((OLD.job_id, OLD.name, OLD.kind, OLD.state, OLD.request, OLD.max_attempts, OLD.attempt_count, OLD.failures,
           OLD.preemptions, OLD.held_by, OLD.begin_at, OLD.retry_at, OLD.eligible_at, OLD.promise, OLD.progress)
          IS DISTINCT FROM
          (NEW.job_id, NEW.name, NEW.kind, NEW.state, NEW.request, NEW.max_attempts, NEW.attempt_count, NEW.failures,
           NEW.preemptions, NEW.held_by, NEW.begin_at, NEW.retry_at, NEW.eligible_at, NEW.promise, NEW.progress))
    EXECUTE FUNCTION yard_stage_changed();
CREATE TRIGGER stages_deleted AFTER DELETE ON jobs_stage
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_stages_changed();

CREATE FUNCTION yard_of_stages_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT DISTINCT stage_id FROM changed;
    RETURN NULL;
END $$;
CREATE TRIGGER attempts_added AFTER INSERT ON jobs_attempt
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_stages_changed();
CREATE TRIGGER attempts_changed AFTER UPDATE ON jobs_attempt
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_stages_changed();
CREATE TRIGGER checkpoints_added AFTER INSERT ON jobs_checkpoint
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_stages_changed();
CREATE TRIGGER checkpoints_deleted AFTER DELETE ON jobs_checkpoint
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_stages_changed();

CREATE FUNCTION yard_of_parts_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT DISTINCT a.stage_id
    FROM changed c JOIN jobs_part t ON t.id = c.part_id JOIN jobs_attempt a ON a.id = t.attempt_id;
    RETURN NULL;
END $$;
CREATE TRIGGER claims_told AFTER INSERT ON jobs_claim
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_parts_changed();
CREATE TRIGGER claims_told_again AFTER UPDATE ON jobs_claim
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_of_parts_changed();

CREATE FUNCTION yard_jobs_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT s.id FROM jobs_stage s WHERE s.job_id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER job_changed AFTER UPDATE ON jobs_job FOR EACH ROW
    WHEN ((OLD.priority, OLD.priority_class, OLD.name, OLD.project_id, OLD.user_id, OLD.pool_id, OLD.bundle)
          IS DISTINCT FROM (NEW.priority, NEW.priority_class, NEW.name, NEW.project_id, NEW.user_id, NEW.pool_id, NEW.bundle))
    EXECUTE FUNCTION yard_jobs_changed();

CREATE FUNCTION yard_bundle_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT s.id FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id
    WHERE j.bundle = NEW.sha256 AND s.state IN ('HELD', 'PENDING');
    RETURN NULL;
END $$;
CREATE TRIGGER bundle_came AFTER INSERT ON jobs_bundle FOR EACH ROW EXECUTE FUNCTION yard_bundle_came();

CREATE FUNCTION yard_node_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'fleet_node' THEN
        INSERT INTO jobs_change (node_id) VALUES (coalesce(NEW.id, OLD.id));
    ELSE
        INSERT INTO jobs_change (node_id) VALUES (coalesce(NEW.node_id, OLD.node_id));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER node_come_or_gone AFTER INSERT OR DELETE ON fleet_node FOR EACH ROW EXECUTE FUNCTION yard_node_changed();
CREATE TRIGGER node_changed AFTER UPDATE ON fleet_node FOR EACH ROW
    WHEN ((OLD.name, OLD.state, OLD.labels, OLD.container_engine, OLD.fetch_gbps, OLD.load)
          IS DISTINCT FROM (NEW.name, NEW.state, NEW.labels, NEW.container_engine, NEW.fetch_gbps, NEW.load))
    EXECUTE FUNCTION yard_node_changed();
CREATE TRIGGER node_pools_changed AFTER INSERT OR DELETE ON fleet_node_pools
    FOR EACH ROW EXECUTE FUNCTION yard_node_changed();
CREATE TRIGGER device_come_or_gone AFTER INSERT OR DELETE ON fleet_device
    FOR EACH ROW EXECUTE FUNCTION yard_node_changed();
CREATE TRIGGER device_changed AFTER UPDATE ON fleet_device FOR EACH ROW
    WHEN ((OLD.node_id, OLD.kind, OLD.vendor, OLD.model, OLD.index, OLD.memory_bytes, OLD.capacity_milli, OLD.mode,
           OLD.health, OLD.numa, OLD.features, OLD.fenced_for, OLD.fenced_until, OLD.division, OLD.link_group, OLD.busy,
           OLD.present)
          IS DISTINCT FROM
          (NEW.node_id, NEW.kind, NEW.vendor, NEW.model, NEW.index, NEW.memory_bytes, NEW.capacity_milli, NEW.mode,
           NEW.health, NEW.numa, NEW.features, NEW.fenced_for, NEW.fenced_until, NEW.division, NEW.link_group, NEW.busy,
           NEW.present))
    EXECUTE FUNCTION yard_node_changed();

CREATE FUNCTION yard_all_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) VALUES (NULL);
    RETURN NULL;
END $$;
CREATE TRIGGER pool_told AFTER UPDATE ON pools_pool FOR EACH ROW
    WHEN ((OLD.name, OLD.storage_path, OLD.min_runtime_s, OLD.repartition)
          IS DISTINCT FROM (NEW.name, NEW.storage_path, NEW.min_runtime_s, NEW.repartition))
    EXECUTE FUNCTION yard_all_changed();
CREATE TRIGGER project_told AFTER UPDATE ON access_project FOR EACH ROW
    WHEN (OLD.name IS DISTINCT FROM NEW.name) EXECUTE FUNCTION yard_all_changed();
CREATE TRIGGER user_told AFTER UPDATE ON access_user FOR EACH ROW
    WHEN (OLD.username IS DISTINCT FROM NEW.username) EXECUTE FUNCTION yard_all_changed();
CREATE TRIGGER bundles_deleted AFTER DELETE ON jobs_bundle FOR EACH STATEMENT EXECUTE FUNCTION yard_all_changed();
"""

FEED_BACK = """
DROP TRIGGER bundles_deleted ON jobs_bundle;
DROP TRIGGER user_told ON access_user;
DROP TRIGGER project_told ON access_project;
DROP TRIGGER pool_told ON pools_pool;
DROP FUNCTION yard_all_changed();
DROP TRIGGER device_changed ON fleet_device;
DROP TRIGGER device_come_or_gone ON fleet_device;
DROP TRIGGER node_pools_changed ON fleet_node_pools;
DROP TRIGGER node_changed ON fleet_node;
DROP TRIGGER node_come_or_gone ON fleet_node;
DROP FUNCTION yard_node_changed();
DROP TRIGGER bundle_came ON jobs_bundle;
DROP FUNCTION yard_bundle_came();
DROP TRIGGER job_changed ON jobs_job;
DROP FUNCTION yard_jobs_changed();
DROP TRIGGER claims_told_again ON jobs_claim;
DROP TRIGGER claims_told ON jobs_claim;
DROP FUNCTION yard_of_parts_changed();
DROP TRIGGER checkpoints_deleted ON jobs_checkpoint;
DROP TRIGGER checkpoints_added ON jobs_checkpoint;
DROP TRIGGER attempts_changed ON jobs_attempt;
DROP TRIGGER attempts_added ON jobs_attempt;
DROP FUNCTION yard_of_stages_changed();
DROP TRIGGER stages_deleted ON jobs_stage;
DROP TRIGGER stage_changed ON jobs_stage;
DROP FUNCTION yard_stage_changed();
DROP TRIGGER stages_added ON jobs_stage;
DROP FUNCTION yard_stages_changed();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0017_saves"),
        ("pools", "0009_own_profiles"),
        ("access", "0002_tries"),
        ("fleet", "0011_links_and_loads"),
    ]

    operations = [
        migrations.CreateModel(
            name="Change",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stage_id", models.UUIDField(null=True)),
                ("node_id", models.UUIDField(null=True)),
                ("xact", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "indexes": [models.Index(fields=["xact"], name="change_xact")],
            },
        ),
        migrations.RunSQL(FEED, FEED_BACK),
    ]
