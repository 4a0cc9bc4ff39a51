"""Arrays of jobs, and jobs that wait for the end of others. The change feed tells what was decided of such a wait."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import controlplane.jobs.written

FEED = """
CREATE FUNCTION yard_dependencies_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT DISTINCT s.id FROM changed c JOIN jobs_stage s ON s.job_id = c.job_id
    WHERE s.state IN ('HELD', 'PENDING');
    RETURN NULL;
END $$;
CREATE TRIGGER dependencies_decided AFTER UPDATE ON jobs_dependency
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION yard_dependencies_changed();
"""
FEED_BACK = """
DROP TRIGGER dependencies_decided ON jobs_dependency;
DROP FUNCTION yard_dependencies_changed();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0007_people_time_zone"),
        ("jobs", "0034_said_notes"),
        ("pools", "0013_leftovers_restricted"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "when",
                    models.CharField(
                        choices=[
                            ("afterok", "Afterok"),
                            ("afterany", "Afterany"),
                            ("afternotok", "Afternotok"),
                            ("aftercorr", "Aftercorr"),
                            ("singleton", "Singleton"),
                        ],
                        max_length=10,
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=30)),
                ("verdict", models.CharField(blank=True, choices=[("met", "Met"), ("never", "Never")], max_length=5)),
                ("decided_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name_plural": "dependencies",
                "ordering": ["id"],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="array_index",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="parameters",
            field=controlplane.jobs.written.WrittenField(null=True),
        ),
        migrations.CreateModel(
            name="Array",
            fields=[
                ("number", models.BigIntegerField(editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("count", models.PositiveIntegerField()),
                ("max_parallel", models.PositiveIntegerField(null=True)),
                ("asked", controlplane.jobs.written.WrittenField()),
                ("submitted_at", models.DateTimeField()),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="arrays", to="pools.pool"
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="arrays", to="access.project"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="arrays", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="array",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="jobs.array",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("array__isnull", False)), fields=["array", "state"], name="job_of_array"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ["CANCELLED", "COMPLETED", "FAILED"]), _negated=True),
                fields=["user", "name", "number"],
                name="job_open_namesake",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("array__isnull", False)), fields=("array", "array_index"), name="element_once"
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="job",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="dependencies", to="jobs.job"
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="on_array",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="dependents", to="jobs.array"
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="on_job",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="dependents", to="jobs.job"
            ),
        ),
        migrations.AddIndex(
            model_name="dependency",
            index=models.Index(condition=models.Q(("verdict", "")), fields=["id"], name="dependency_open"),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("when__in", ["afterok", "afterany", "afternotok", "aftercorr", "singleton"])),
                name="dependency_when_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("verdict", ""), _negated=True),
                    ("when", "singleton"),
                    ("on_job__isnull", False),
                    ("on_array__isnull", False),
                    _connector="OR",
                ),
                name="dependency_open_has_other",
            ),
        ),
        migrations.RunSQL(FEED, FEED_BACK),
    ]
