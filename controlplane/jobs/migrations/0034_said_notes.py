"""What agents note of parts, in clauses."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0033_names_replanned_said")]
    operations = [
        migrations.AddField("part", "substate_said", models.JSONField(db_default=[], default=list)),
        migrations.AddField("part", "notes_said", models.JSONField(db_default=[], default=list)),
    ]
