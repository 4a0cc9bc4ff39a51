"""Tallies of what jobs, attempts, claims and decisions did, counted by triggers; operators and auditors may read /metrics."""

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles

# The bounds are those of controlplane.observability.tallies, in whose order the buckets are numbered.
TRIGGERS = """
CREATE FUNCTION yard_tally_bucket(value float8, bounds float8[]) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT count(*)::smallint FROM unnest(bounds) AS bound WHERE bound < value
$$;

CREATE FUNCTION yard_tally_submitted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, pool_id, project_id, count)
    SELECT 'submitted', pool_id, project_id, count(*) FROM added GROUP BY pool_id, project_id;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_tallied AFTER INSERT ON jobs_job
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION yard_tally_submitted();

CREATE FUNCTION yard_tally_finished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, pool_id, project_id, word)
    VALUES ('finished', NEW.pool_id, NEW.project_id, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER job_end_tallied AFTER UPDATE ON jobs_job FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION yard_tally_finished();

CREATE FUNCTION yard_tally_requeued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, pool_id, word)
    SELECT 'requeued', j.pool_id, NEW.cause FROM jobs_job j WHERE j.id = NEW.job_id;
    RETURN NULL;
END $$;
CREATE TRIGGER stage_requeue_tallied AFTER UPDATE ON jobs_stage FOR EACH ROW
    WHEN (OLD.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED') AND NEW.state = 'PENDING')
    EXECUTE FUNCTION yard_tally_requeued();

CREATE FUNCTION yard_tally_started() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, pool_id, bucket, count, amount)
    SELECT 'wait', w.pool_id, yard_tally_bucket(w.s, '{1,5,15,60,300,900,3600,14400,43200,86400,259200,604800}'),
           count(*), sum(w.s)
    FROM (SELECT j.pool_id, greatest(0, extract(epoch FROM a.created_at
              - greatest(s.eligible_at, s.begin_at, j.submitted_at)))::float8 AS s
          FROM added a JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
          WHERE a.number = 1) w
    GROUP BY 2, 3;
    INSERT INTO observability_tally (series, pool_id, word, bucket, count, amount)
    SELECT 'start_error', e.pool_id, CASE WHEN e.s > 0 THEN 'late' ELSE 'early' END,
           yard_tally_bucket(abs(e.s), '{1,15,60,300,900,3600,14400,86400}'), count(*), sum(abs(e.s))
    FROM (SELECT j.pool_id, extract(epoch FROM a.created_at)::float8 - (s.announced->>'at')::float8 AS s
          FROM added a JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
          WHERE a.number = 1 AND s.announced IS NOT NULL AND (s.announced->>'shown')::bool
              AND s.announced->>'at' IS NOT NULL) e
    GROUP BY 2, 3, 4;
    RETURN NULL;
END $$;
CREATE TRIGGER attempts_tallied AFTER INSERT ON jobs_attempt
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION yard_tally_started();

CREATE FUNCTION yard_tally_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, pool_id, word, amount)
    SELECT 'attempt', j.pool_id, NEW.cause, coalesce(NEW.price, 0)
    FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id WHERE s.id = NEW.stage_id;
    RETURN NULL;
END $$;
CREATE TRIGGER attempt_end_tallied AFTER UPDATE ON jobs_attempt FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION yard_tally_attempt();

CREATE FUNCTION yard_tally_claims() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, project_id, word, count, amount)
    SELECT 'claim', j.project_id, d.kind, count(*),
           sum(greatest(0, extract(epoch FROM n.closed_at - n.opened_at)::float8) * n.milli / 1000)
    FROM closed n JOIN before o ON o.id = n.id AND o.closed_at IS NULL AND n.closed_at IS NOT NULL
         JOIN fleet_device d ON d.id = n.device_id JOIN jobs_part t ON t.id = n.part_id
         JOIN jobs_attempt a ON a.id = t.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
         JOIN jobs_job j ON j.id = s.job_id
    GROUP BY 2, 3;
    RETURN NULL;
END $$;
CREATE TRIGGER claims_tallied AFTER UPDATE ON jobs_claim
    REFERENCING OLD TABLE AS before NEW TABLE AS closed FOR EACH STATEMENT EXECUTE FUNCTION yard_tally_claims();

CREATE FUNCTION yard_tally_decision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO observability_tally (series, word, count)
    SELECT 'decision', word, n FROM (VALUES ('started', jsonb_array_length(NEW.started)),
        ('evicted', jsonb_array_length(NEW.evicted)), ('skipped', jsonb_array_length(NEW.skipped))) AS t (word, n)
    WHERE n > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER decision_tallied AFTER INSERT ON jobs_decision FOR EACH ROW EXECUTE FUNCTION yard_tally_decision();
"""
TRIGGERS_BACK = """
DROP TRIGGER decision_tallied ON jobs_decision;
DROP TRIGGER claims_tallied ON jobs_claim;
DROP TRIGGER attempt_end_tallied ON jobs_attempt;
DROP TRIGGER attempts_tallied ON jobs_attempt;
DROP TRIGGER stage_requeue_tallied ON jobs_stage;
DROP TRIGGER job_end_tallied ON jobs_job;
DROP TRIGGER jobs_tallied ON jobs_job;
DROP FUNCTION yard_tally_decision(), yard_tally_claims(), yard_tally_attempt(), yard_tally_started(),
    yard_tally_requeued(), yard_tally_finished(), yard_tally_submitted(), yard_tally_bucket(float8, float8[]);
"""


def grant(apps, schema_editor):
    """Lets operators and auditors read /metrics; the permission is made now, and not by Django after all migrations."""
    config = apps.get_app_config("observability")
    config.models_module = installed.get_app_config("observability").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    permission = apps.get_model("auth", "Permission")
    for group in apps.get_model("auth", "Group").objects.filter(name__in=[roles.OPERATOR, roles.AUDITOR]):
        group.permissions.add(permission.objects.get(content_type__app_label="observability", codename="view_tally"))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("access", "0007_people_time_zone"),
        ("jobs", "0034_said_notes"),
        ("retention", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("series", models.CharField(max_length=20)),
                ("pool_id", models.UUIDField(null=True)),
                ("project_id", models.UUIDField(null=True)),
                ("word", models.CharField(db_default="", max_length=40)),
                ("bucket", models.PositiveSmallIntegerField(null=True)),
                ("count", models.BigIntegerField(db_default=1)),
                ("amount", models.FloatField(db_default=0.0)),
            ],
            options={"verbose_name_plural": "tallies", "default_permissions": ("view",)},
        ),
        migrations.RunSQL(TRIGGERS, TRIGGERS_BACK),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
