"""For which planned stop an attempt was asked to save."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0049_node_amounts")]
    operations = [
        migrations.AddField(
            "attempt", "save_rev", models.PositiveIntegerField(db_default=0, default=0, editable=False)
        ),
        migrations.AddField(
            "attempt",
            "save_for",
            models.DateTimeField(
                editable=False, help_text="The planned stop ahead of which it was last asked to save.", null=True
            ),
        ),
    ]
