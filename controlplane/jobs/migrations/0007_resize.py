from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0006_partitions"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="stop_note",
            field=models.CharField(blank=True, default="", max_length=300),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="attempt",
            name="resized_to",
            field=models.PositiveSmallIntegerField(
                help_text="With how many nodes its stage goes on, where it was told to stop for that.", null=True
            ),
        ),
    ]
