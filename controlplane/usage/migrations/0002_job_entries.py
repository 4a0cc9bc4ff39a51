"""Usage by job. The days whose jobs are all there are computed again, which fills it."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0008_service_accounts"),
        ("jobs", "0042_operations"),
        ("usage", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="JobEntry",
            fields=[
                ("day", models.DateField()),
                ("kind", models.CharField(max_length=20)),
                ("model", models.CharField(blank=True, max_length=120)),
                ("allocated_ms", models.BigIntegerField(default=0)),
                ("charged_ms", models.BigIntegerField(default=0)),
                ("known_ms", models.BigIntegerField(default=0)),
                ("busy_ms", models.BigIntegerField(default=0)),
                ("preempted_ms", models.BigIntegerField(default=0)),
                ("failed_ms", models.BigIntegerField(default=0)),
                ("powered_ms", models.BigIntegerField(default=0)),
                ("millijoules", models.BigIntegerField(default=0)),
                ("attempts", models.PositiveIntegerField(default=0)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "day", "kind", "model", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="jobs.job"
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="access.project",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "job entries",
                "ordering": ["-day"],
                "indexes": [
                    models.Index(fields=["project", "day"], name="job_entry_of_project"),
                    models.Index(fields=["user", "day"], name="job_entry_of_user"),
                    models.Index(fields=["day"], name="job_entry_of_day"),
                ],
            },
        ),
        # Jobs that run are written every minute, on the same page.
        migrations.RunSQL("ALTER TABLE usage_jobentry SET (fillfactor = 80)", migrations.RunSQL.noop),
        migrations.RunSQL("UPDATE usage_ledgerday SET is_due = true", migrations.RunSQL.noop),
    ]
