"""What evictions cost of late is summed up without reading all that ever ran."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0008_out_of_memory"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(condition=models.Q(("price__gt", 0)), fields=["-ended_at"], name="attempt_priced"),
        ),
    ]
