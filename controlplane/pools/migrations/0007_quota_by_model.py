"""Quotas by model of device, and in units of what devices are worth."""

import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0006_min_runtime"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="quota", name="quota_once_per_kind"),
        migrations.AlterModelOptions(
            name="quota", options={"ordering": ["project__name", "kind", "model", "normalised"]}
        ),
        migrations.AddField(
            model_name="quota",
            name="model",
            field=models.CharField(
                blank=True,
                default="",
                help_text=(
                    "Only devices whose model has this in its name, in whatever case; empty means all of the kind."
                ),
                max_length=80,
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="quota",
            name="normalised",
            field=models.BooleanField(
                default=False,
                help_text=(
                    "Counts devices by what they are worth beside an A100: an H100 as more than one, a T4 as less."
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="quota",
            constraint=models.UniqueConstraint(
                models.F("project"),
                models.F("kind"),
                django.db.models.functions.text.Lower("model"),
                models.F("normalised"),
                name="quota_once_per_sort",
            ),
        ),
    ]
