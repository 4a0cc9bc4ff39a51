"""Why the timetable was computed anew, in clauses."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0032_keep_log_archive")]
    operations = [
        migrations.AddField("decision", "replanned_said", models.JSONField(db_default=[], default=list)),
    ]
