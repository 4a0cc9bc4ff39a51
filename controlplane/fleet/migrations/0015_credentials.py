"""Nodes get new credentials through their own link."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0014_survivors")]
    operations = [
        migrations.AddField("node", "offered_digests", models.JSONField(default=list, editable=False)),
        migrations.AddField("node", "credential_at", models.DateTimeField(editable=False, null=True)),
    ]
