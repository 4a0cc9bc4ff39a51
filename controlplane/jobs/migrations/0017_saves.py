"""How long saves take, and how often attempts are told to save."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0016_shadow_by_pool"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="checkpoint_every_s",
            field=models.FloatField(help_text="How often it was told to save, in seconds.", null=True),
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="took_s",
            field=models.FloatField(help_text="How long saving it held up the stage, where that was told.", null=True),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("started_at__isnull", False)), fields=["-ended_at"], name="attempt_ran"
            ),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(condition=models.Q(("took_s__isnull", False)), fields=["-at"], name="checkpoint_timed"),
        ),
    ]
