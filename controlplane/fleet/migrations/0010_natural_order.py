"""Nodes have a key by which they are sorted, and walked, as people expect: n2 before n10."""

import django.db.models.expressions
from django.db import migrations, models

from controlplane.natural import FUNCTION


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0009_alarms"),
    ]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION natural_key"),
        migrations.AlterModelOptions(name="node", options={"ordering": ["sort_key"]}),
        migrations.AddField(
            model_name="node",
            name="sort_key",
            field=models.GeneratedField(
                db_persist=True,
                expression=django.db.models.expressions.Func(models.F("name"), function="natural_key"),
                output_field=models.TextField(db_collation="C"),
                unique=True,
            ),
        ),
    ]
