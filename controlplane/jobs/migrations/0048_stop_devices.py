"""Which of its devices a stopped attempt frees for somebody, so that no others are kept for them."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0047_ordinary_jobs")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="stop_devices",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(),
                help_text="The devices that it frees for that stage; empty for all that it holds.",
                null=True,
                size=None,
            ),
        ),
    ]
