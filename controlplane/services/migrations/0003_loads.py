from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("services", "0002_counted_errors")]

    operations = [
        migrations.AddField("inferenceservice", "tokens", models.PositiveBigIntegerField(db_default=0, default=0)),
        migrations.AddField("replica", "load", models.JSONField(db_default={}, default=dict)),
    ]
