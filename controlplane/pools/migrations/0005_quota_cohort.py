"""Who lends to whom, and may take it back."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0004_repartition"),
    ]

    operations = [
        migrations.AddField(
            model_name="quota",
            name="cohort",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Quotas of one cohort lend each other what is not used, and take it back when they need it.",
                max_length=63,
            ),
            preserve_default=False,
        ),
    ]
