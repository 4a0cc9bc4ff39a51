"""Which process of an agent speaks for a node, and which batch of its measurements was the last."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0011_links_and_loads"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="incarnation",
            field=models.CharField(blank=True, default="", editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name="node",
            name="incarnation_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="machine_id",
            field=models.CharField(blank=True, default="", editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name="node",
            name="booted_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="host",
            name="batch_of",
            field=models.CharField(blank=True, default="", editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name="host",
            name="batch_seq",
            field=models.BigIntegerField(default=0, editable=False),
        ),
    ]
