"""An index of the stages that completed and have a model to promote."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0051_node_links_told"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="stage",
            index=models.Index(
                condition=models.Q(("request__has_key", "promote"), ("state", "COMPLETED")),
                fields=["-ended_at"],
                name="stage_promotes",
            ),
        ),
    ]
