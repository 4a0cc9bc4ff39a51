"""A second quota of one sort is refused in a sentence."""

import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0009_checklist"),
        ("pools", "0018_measure_links"),
    ]

    operations = [
        migrations.AlterConstraint(
            model_name="quota",
            name="quota_once_per_sort",
            constraint=models.UniqueConstraint(
                models.F("project"),
                models.F("kind"),
                django.db.models.functions.text.Lower("model"),
                models.F("normalised"),
                name="quota_once_per_sort",
                violation_error_message="This project has a quota of this kind and model already; change that one.",
            ),
        ),
    ]
