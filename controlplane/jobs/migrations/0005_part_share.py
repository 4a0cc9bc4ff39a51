from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0004_outputs"),
    ]

    operations = [
        migrations.AddField(model_name="part", name="spec_rev", field=models.PositiveIntegerField(default=1)),
        migrations.AddField(model_name="part", name="share", field=models.JSONField(null=True)),
        migrations.AddField(model_name="part", name="seen_rev", field=models.PositiveIntegerField(default=1)),
        migrations.AddField(model_name="part", name="notes", field=models.JSONField(default=list)),
    ]
