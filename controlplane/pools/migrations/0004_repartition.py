"""Whether devices of a pool may be divided for stages."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0003_user_limit")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="repartition",
            field=models.BooleanField(
                default=False,
                help_text="Devices here may be divided for stages that ask for a partition, where their agent can do that.",
            ),
        ),
    ]
