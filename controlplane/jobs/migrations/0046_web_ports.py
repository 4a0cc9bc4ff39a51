"""Ports of jobs that people open in a browser."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0045_traces")]
    operations = [
        migrations.AddField("part", "listens", models.JSONField(db_default=[], default=list)),
        migrations.AddField("part", "visited_at", models.DateTimeField(null=True)),
        migrations.AddField("session", "is_web", models.BooleanField(db_default=False, default=False)),
        migrations.AddField("session", "login", models.CharField(blank=True, db_default="", max_length=40)),
        migrations.AddField("session", "ticket", models.CharField(blank=True, db_default="", max_length=64)),
        migrations.AddField("session", "ticket_until", models.DateTimeField(null=True)),
        migrations.AddIndex(
            "stage",
            models.Index(
                fields=["id"],
                name="stage_open_ports",
                condition=~models.Q(state__in=["CANCELLED", "COMPLETED", "FAILED"])
                & models.Q(request__has_key="ports"),
            ),
        ),
    ]
