"""What ran out of memory is found without reading all that ever ran."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0007_resize"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("cause", "OUT_OF_MEMORY")), fields=["-ended_at"], name="attempt_out_of_memory"
            ),
        ),
    ]
