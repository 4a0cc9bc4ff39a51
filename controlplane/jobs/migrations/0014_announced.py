"""The first range in which a stage was said to start, to hold against its start; and how long it will probably run."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0013_curves"),
    ]

    operations = [
        migrations.AddField(model_name="stage", name="announced", field=models.JSONField(null=True)),
        migrations.AddField(model_name="stage", name="lasts", field=models.JSONField(null=True)),
        migrations.AddIndex(
            model_name="stage",
            index=models.Index(
                fields=["-started_at"], name="stage_announced", condition=models.Q(announced__isnull=False)
            ),
        ),
    ]
