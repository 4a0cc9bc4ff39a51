"""Notices of ended jobs. A trigger writes one with the end of a job, whichever process ends it."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# By the database, because the release before this one knows nothing of these tables and removes users and jobs.
CASCADES = """
ALTER TABLE notifications_noticechoice ADD CONSTRAINT notice_choice_user
    FOREIGN KEY (user_id) REFERENCES access_user (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE notifications_notice ADD CONSTRAINT notice_user
    FOREIGN KEY (user_id) REFERENCES access_user (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE notifications_notice ADD CONSTRAINT notice_job
    FOREIGN KEY (job_id) REFERENCES jobs_job (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""
TRIGGER = """
CREATE FUNCTION yard_job_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notifications_notice (job_id, user_id, at)
    SELECT NEW.id, NEW.user_id, NEW.ended_at FROM notifications_noticechoice c
    WHERE c.user_id = NEW.user_id AND (c.ends = 'all' OR NEW.state = 'FAILED')
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER job_end_noticed AFTER UPDATE ON jobs_job FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION yard_job_ended();
"""
TRIGGER_BACK = "DROP TRIGGER job_end_noticed ON jobs_job; DROP FUNCTION yard_job_ended();"


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobs", "0031_leftovers_restricted"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="NoticeChoice",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="notice_choice",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "ends",
                    models.CharField(choices=[("failed", "failed jobs"), ("all", "all jobs that end")], max_length=8),
                ),
                ("language", models.CharField(max_length=10)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends__in", ["failed", "all"])), name="notice_ends_known"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="notice",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("mail", models.UUIDField(null=True)),
                ("claimed_at", models.DateTimeField(null=True)),
                ("sent_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notices",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["at"], name="notice_at"),
                    models.Index(
                        condition=models.Q(models.Q(("mail", None), _negated=True), ("sent_at", None)),
                        fields=["claimed_at"],
                        name="notice_on_its_way",
                    ),
                    models.Index(fields=["mail"], name="notice_of_mail"),
                ],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGER, TRIGGER_BACK),
    ]
