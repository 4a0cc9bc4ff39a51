"""What was set aside, and why; the heartbeat loses a column that nobody read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_join_token_of_a_node")]

    operations = [
        migrations.RemoveField(model_name="heartbeat", name="epoch"),
        migrations.CreateModel(
            name="Alarm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=20)),
                ("subject", models.CharField(max_length=130)),
                ("says", models.CharField(max_length=500)),
                ("since", models.DateTimeField()),
                ("at", models.DateTimeField()),
                ("times", models.PositiveIntegerField(default=1)),
            ],
            options={"ordering": ["since", "id"]},
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.UniqueConstraint(fields=("kind", "subject"), name="alarm_once"),
        ),
    ]
