"""The values of secrets leave the rows of jobs and stages: encrypted for those that can still start, and for all others
not at all. Whoever waits for a secret of its project is looked at again when one is set or deleted."""

import json

import django.db.models.deletion
from django.db import migrations, models

from controlplane.accounts import envelope
from controlplane.jobs import masked, sealed

FINAL = ("COMPLETED", "FAILED", "CANCELLED")

FEED = """
CREATE FUNCTION yard_secret_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT s.id FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id
    WHERE j.project_id = coalesce(NEW.project_id, OLD.project_id) AND s.state IN ('HELD', 'PENDING')
      AND s.request ? 'named_secrets';
    RETURN NULL;
END $$;
CREATE TRIGGER secret_come_or_gone AFTER INSERT OR DELETE ON access_secret
    FOR EACH ROW EXECUTE FUNCTION yard_secret_changed();
"""
FEED_BACK = """
DROP TRIGGER secret_come_or_gone ON access_secret;
DROP FUNCTION yard_secret_changed();
"""


def into_envelopes(apps, schema_editor):
    """Masks what is kept of each job file, and encrypts the values that a stage may still need."""
    job_of, secrets_of = apps.get_model("jobs", "Job"), apps.get_model("jobs", "JobSecrets")
    for job in job_of.objects.prefetch_related("stages").iterator(chunk_size=500):
        stages = list(job.stages.all())
        parted = sealed.part(job.spec, [stage.request for stage in stages])
        if parted.spec != job.spec:
            job_of.objects.filter(pk=job.pk).update(spec=parted.spec)
        changed = []
        for stage, request in zip(stages, parted.requests, strict=True):
            if request != stage.request:
                stage.request = request
                changed.append(stage)
        apps.get_model("jobs", "Stage").objects.bulk_update(changed, ["request"])
        if parted.values and any(stage.state not in FINAL for stage in stages):
            kept = envelope.seal(json.dumps(parted.values).encode(), f"job {job.pk}")
            secrets_of.objects.create(
                job=job, ciphertext=kept.ciphertext, wrapped_key=kept.wrapped_key, key_id=kept.key_id
            )


def into_rows(apps, schema_editor):
    """Puts the values back where the release before this one looks for them."""
    stage_of = apps.get_model("jobs", "Stage")
    for kept in apps.get_model("jobs", "JobSecrets").objects.iterator():
        held = envelope.Envelope(bytes(kept.ciphertext), bytes(kept.wrapped_key), kept.key_id)
        values = json.loads(envelope.unseal(held, f"job {kept.pk}"))
        for stage in stage_of.objects.filter(job=kept.pk):
            places = stage.request.pop(masked.SEALED, None)
            if places is None:
                continue
            for way, place in zip(stage.request["alternatives"], places, strict=True):
                way["env"] = {**way["env"], **{name: values[index] for name, index in place.items()}}
            stage.save(update_fields=["request"])


class Migration(migrations.Migration):
    dependencies = [("jobs", "0028_storage_log_sizes"), ("access", "0006_secrets")]
    operations = [
        migrations.CreateModel(
            name="JobSecrets",
            fields=[
                ("ciphertext", models.BinaryField()),
                ("wrapped_key", models.BinaryField()),
                ("key_id", models.CharField(db_index=True, max_length=200)),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="secrets",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
            ],
            options={"verbose_name_plural": "job secrets"},
        ),
        migrations.RunSQL(FEED, FEED_BACK),
        migrations.RunPython(into_envelopes, into_rows),
    ]
