"""Stages that run, that are held, and that have a place in the timetable are found among many that ended."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0025_event_project"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="stage",
            index=models.Index(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "RUNNING",
                            "STARTING",
                            "STOPPING",
                            "SUSPENDED",
                        ],
                    )
                ),
                fields=["-started_at"],
                name="stage_active",
            ),
        ),
        migrations.AddIndex(
            model_name="stage",
            index=models.Index(condition=models.Q(("planned__isnull", False)), fields=["id"], name="stage_planned"),
        ),
        migrations.AddIndex(
            model_name="stage",
            index=models.Index(condition=models.Q(("state", "HELD")), fields=["state_at"], name="stage_held"),
        ),
    ]
