"""Why the timetable was computed anew, in clauses."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0031_leftovers_restricted")]
    operations = [
        migrations.AddField("decision", "replanned_said", models.JSONField(db_default=[], default=list)),
    ]
