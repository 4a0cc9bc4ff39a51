"""What is said of attempts, stages and events is kept in clauses too, beside the English sentence."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0009_priced"),
    ]

    operations = [
        migrations.AddField(model_name="attempt", name="said", field=models.JSONField(default=dict)),
        migrations.AddField(model_name="event", name="said", field=models.JSONField(default=list)),
        migrations.AddField(model_name="stage", name="said", field=models.JSONField(default=list)),
    ]
