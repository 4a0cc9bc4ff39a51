"""Whether a user has dismissed the first steps on the overview."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0008_service_accounts"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="has_dismissed_checklist",
            field=models.BooleanField(db_default=False, default=False, editable=False),
        ),
    ]
