"""What happens to stages of a pool whose node is silent."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0007_quota_by_model"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="on_node_lost",
            field=models.CharField(
                choices=[("wait", "wait"), ("requeue", "requeue"), ("requeue_fast", "requeue_fast")],
                default="wait",
                help_text="What happens to a stage here whose node is silent, where its job file does not say it.",
                max_length=20,
            ),
        ),
    ]
