"""Stages may end because their node is not fit for them."""

from django.db import migrations, models

from scheduler.core.model.lifecycle import Cause

CHOICES = [(cause, cause) for cause in Cause]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_unfit")]
    operations = [
        migrations.AlterField(model, field, models.CharField(blank=True, choices=CHOICES, max_length=20))
        for model, field in (("attempt", "cause"), ("attempt", "stop_why"), ("stage", "cause"))
    ]
