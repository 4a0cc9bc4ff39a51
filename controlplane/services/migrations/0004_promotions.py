"""Promotions of models that stages left, and the revisions that serve them."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0009_checklist"),
        ("services", "0003_loads"),
    ]

    operations = [
        migrations.CreateModel(
            name="Promotion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempt", models.UUIDField(unique=True)),
                ("name", models.CharField(help_text="The name of the service.", max_length=63)),
                ("job", models.BigIntegerField()),
                ("stage", models.CharField(max_length=63)),
                ("user", models.CharField(help_text="The owner of the job when it was judged.", max_length=150)),
                ("asked", models.JSONField()),
                ("reported", models.JSONField(default=dict)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("WAITING", "waits"),
                            ("TRIAL", "on trial"),
                            ("PROMOTED", "promoted"),
                            ("REFUSED", "refused"),
                            ("ROLLED_BACK", "rolled back"),
                            ("REPLACED", "replaced"),
                        ],
                        default="WAITING",
                        max_length=11,
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=500)),
                ("said", models.JSONField(default=list)),
                ("value", models.FloatField(null=True)),
                ("revision", models.PositiveIntegerField(null=True)),
                ("former", models.PositiveIntegerField(null=True)),
                ("answers", models.PositiveBigIntegerField(default=0)),
                ("errors", models.PositiveBigIntegerField(default=0)),
                ("first_bytes", models.JSONField(default=list)),
                ("made_at", models.DateTimeField()),
                ("trial_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.AddField(
            model_name="servicerevision",
            name="model",
            field=models.JSONField(db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name="servicerevision",
            name="model_job",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddIndex(
            model_name="servicerevision",
            index=models.Index(
                condition=models.Q(("model_job__isnull", False)), fields=["model_job"], name="revision_of_job"
            ),
        ),
        migrations.AddField(
            model_name="promotion",
            name="project",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="promotions",
                to="access.project",
            ),
        ),
        migrations.AddField(
            model_name="promotion",
            name="service",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="promotions",
                to="services.inferenceservice",
            ),
        ),
        migrations.AddIndex(
            model_name="promotion",
            index=models.Index(condition=models.Q(("ended_at", None)), fields=["id"], name="promotion_open"),
        ),
        migrations.AddIndex(
            model_name="promotion",
            index=models.Index(fields=["job"], name="promotion_of_job"),
        ),
        migrations.AddConstraint(
            model_name="promotion",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ["WAITING", "TRIAL", "PROMOTED", "REFUSED", "ROLLED_BACK", "REPLACED"])
                ),
                name="promotion_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="promotion",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "TRIAL")), fields=("service",), name="one_promotion_on_trial_per_service"
            ),
        ),
    ]
