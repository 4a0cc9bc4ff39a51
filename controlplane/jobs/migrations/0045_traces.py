"""Profiles of running parts: who asked for them, how far they are, and how large."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0044_forwarded_ports"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="StageTrace",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("tool", models.CharField(max_length=20)),
                ("seconds", models.PositiveSmallIntegerField(help_text="For how long it is taken.")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ASKED", "Asked"),
                            ("RUNNING", "Running"),
                            ("READY", "Ready"),
                            ("FAILED", "Failed"),
                        ],
                        default="ASKED",
                        max_length=7,
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=500)),
                ("said", models.JSONField(default=list)),
                ("size_bytes", models.BigIntegerField(default=0)),
                ("asked_at", models.DateTimeField()),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "asked_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="traces",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "part",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="traces", to="jobs.part"
                    ),
                ),
            ],
            options={
                "ordering": ["-asked_at"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["ASKED", "RUNNING", "READY", "FAILED"])),
                        name="trace_state_known",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["ASKED", "RUNNING"])),
                        fields=("part",),
                        name="one_open_trace_per_part",
                    ),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", False)), fields=["ended_at"], name="trace_ended"
                    )
                ],
            },
        ),
    ]
