"""How a device can be divided and is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0006_maintenance_windows"),
        ("pools", "0004_repartition"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="division",
            field=models.JSONField(help_text="How it can be divided and is; null where it cannot.", null=True),
        ),
    ]
