"""What simulations do and why they failed, in clauses."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("simulations", "0002_storage_bytes_in_storage")]
    operations = [
        migrations.AddField("simulation", "doing_said", models.JSONField(db_default=[], default=list)),
        migrations.AddField("simulation", "fault_said", models.JSONField(db_default=[], default=list)),
    ]
