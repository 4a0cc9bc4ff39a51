"""What holds who shares a device to their memory."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_incarnations")]
    operations = [
        migrations.AddField(
            "device",
            "sharing",
            models.CharField(
                blank=True,
                default="",
                editable=False,
                help_text=(
                    "What holds who shares it to their memory: hard, soft or none; empty where that was not told."
                ),
                max_length=8,
            ),
            preserve_default=False,
        )
    ]
