"""What engine answers on a node, in place of a label that named what lay on its agent's path."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0003_kept"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="container_engine",
            field=models.CharField(
                editable=False,
                help_text="Empty where none answers; null where the agent does not look for one.",
                max_length=80,
                null=True,
            ),
        ),
        migrations.RunSQL(
            "UPDATE fleet_node SET labels = labels - 'container-engines' WHERE labels ? 'container-engines'",
            migrations.RunSQL.noop,
        ),
    ]
