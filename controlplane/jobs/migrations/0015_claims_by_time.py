"""Claims by when they were opened and closed, so that the use of projects is read as it changes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0014_announced"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="claim",
            index=models.Index(fields=["opened_at"], name="claim_opened_at"),
        ),
        migrations.AddIndex(
            model_name="claim",
            index=models.Index(fields=["closed_at"], name="claim_closed_at"),
        ),
    ]
