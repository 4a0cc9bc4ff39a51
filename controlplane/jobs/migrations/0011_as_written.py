"""Job files keep the order of their keys."""

from django.db import migrations

import controlplane.jobs.written


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0010_said"),
    ]

    operations = [
        migrations.AlterField(model_name="job", name="spec", field=controlplane.jobs.written.WrittenField()),
    ]
