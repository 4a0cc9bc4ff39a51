"""Sessions that forward a port: the port, and for each of its connections the forward that it is of."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0043_halving")]
    operations = [
        migrations.AddField(
            "session",
            "of",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="connections",
                to="jobs.session",
            ),
        ),
        migrations.AddField("session", "port", models.PositiveIntegerField(null=True)),
    ]
