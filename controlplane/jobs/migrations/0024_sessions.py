"""Who entered which running stage, with what, and how that ended."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0023_cause")]
    operations = [
        migrations.CreateModel(
            name="Session",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("token", models.CharField(max_length=64)),
                ("command", models.JSONField(default=list)),
                ("tty", models.BooleanField(default=False)),
                ("stdin", models.BooleanField(default=False)),
                ("rows", models.PositiveIntegerField(default=24)),
                ("columns", models.PositiveIntegerField(default=80)),
                ("term", models.CharField(blank=True, max_length=64)),
                ("channel", models.CharField(max_length=200)),
                ("opened_at", models.DateTimeField()),
                ("joined_at", models.DateTimeField(null=True)),
                ("seen_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "part",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="sessions", to="jobs.part"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(condition=models.Q(("ended_at", None)), fields=["seen_at"], name="session_open")
                ]
            },
        ),
    ]
