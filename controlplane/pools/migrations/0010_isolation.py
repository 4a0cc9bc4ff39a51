"""A pool may require how far its nodes keep projects apart."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0009_own_profiles")]
    operations = [
        migrations.AddField(
            "pool",
            "isolation",
            models.CharField(
                choices=[("none", "none"), ("user", "user"), ("private", "private"), ("full", "full")],
                default="none",
                help_text="Nodes that keep projects less apart than this run nothing of this pool.",
                max_length=10,
            ),
        )
    ]
