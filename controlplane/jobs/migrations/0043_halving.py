"""Sweeps may stop their worse elements early: the rule of an array, what was reported at its rungs, and the cause."""

import django.db.models.deletion
from django.db import migrations, models

from scheduler.core.model.lifecycle import Cause

CHOICES = [(cause, cause) for cause in Cause]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0042_operations")]
    operations = [
        migrations.AddField("array", "halving", models.JSONField(null=True)),
        migrations.CreateModel(
            name="RungResult",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rung", models.PositiveSmallIntegerField()),
                ("step", models.BigIntegerField()),
                ("value", models.FloatField(null=True)),
                ("at", models.DateTimeField()),
                (
                    "verdict",
                    models.CharField(
                        blank=True, choices=[("goes_on", "Goes On"), ("stopped", "Stopped")], max_length=7
                    ),
                ),
                ("among", models.PositiveIntegerField(null=True)),
                ("cutoff", models.FloatField(null=True)),
                (
                    "stage",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="rung_results", to="jobs.stage"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.UniqueConstraint(fields=("stage", "rung"), name="rung_reached_once"),
                    models.CheckConstraint(
                        condition=models.Q(("verdict__in", ["", "goes_on", "stopped"])), name="rung_verdict_known"
                    ),
                ],
                "indexes": [models.Index(fields=["id"], name="rung_unjudged", condition=models.Q(("verdict", "")))],
            },
        ),
        *(
            migrations.AlterField(model, field, models.CharField(blank=True, choices=CHOICES, max_length=20))
            for model, field in (("attempt", "cause"), ("attempt", "stop_why"), ("stage", "cause"))
        ),
    ]
