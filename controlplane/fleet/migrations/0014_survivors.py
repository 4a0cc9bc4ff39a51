"""What runs on a node and the record does not know."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0013_sharing")]
    operations = [migrations.AddField("node", "survivors", models.JSONField(default=dict, editable=False))]
