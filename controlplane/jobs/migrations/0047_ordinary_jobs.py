"""An index of the numbers of ordinary jobs, so that elements of arrays do not hide them from a search."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0046_web_ports")]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(condition=models.Q(("array__isnull", True)), fields=["-number"], name="job_ordinary"),
        ),
    ]
