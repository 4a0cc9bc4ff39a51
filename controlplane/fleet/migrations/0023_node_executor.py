from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0022_mounts"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="executor",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="The foreign engine whose jobs its stages are; empty where they run on the node itself.",
                max_length=40,
            ),
        ),
        migrations.AddField("node", "lacks", models.JSONField(db_default=[], default=list, editable=False)),
        migrations.AddField("node", "lacks_said", models.JSONField(db_default=[], default=list, editable=False)),
    ]
