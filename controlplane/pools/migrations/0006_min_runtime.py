"""For how long after its start a stage of a pool is left alone."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0005_quota_cohort"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="min_runtime_s",
            field=models.PositiveIntegerField(
                default=0,
                help_text=(
                    "For so many seconds after its start no stage here is stopped for another; 0 protects nobody."
                ),
                validators=[django.core.validators.MaxValueValidator(2592000)],
            ),
        ),
    ]
