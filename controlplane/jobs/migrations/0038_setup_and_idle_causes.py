"""Attempts may end because their setup failed, or because they held devices idle."""

from django.db import migrations, models

from scheduler.core.model.lifecycle import Cause

CHOICES = [(cause, cause) for cause in Cause]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0037_waits_and_pace")]
    operations = [
        migrations.AlterField(model, field, models.CharField(blank=True, choices=CHOICES, max_length=20))
        for model, field in (("attempt", "cause"), ("attempt", "stop_why"), ("stage", "cause"))
    ]
