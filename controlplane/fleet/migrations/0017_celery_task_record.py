"""How each Celery task fares."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0016_roles_permissions")]
    operations = [
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("name", models.CharField(max_length=60, primary_key=True, serialize=False)),
                ("done_at", models.DateTimeField(null=True)),
                ("took_s", models.FloatField(default=0)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("failed_at", models.DateTimeField(null=True)),
                ("error", models.CharField(default="", max_length=500)),
            ],
            options={"db_table": "fleet_task_record"},
        ),
    ]
