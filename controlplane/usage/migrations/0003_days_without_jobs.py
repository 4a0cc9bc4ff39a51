"""Which days have usage by job. The others were counted before there was any; it is added to them as far as their jobs
are still there."""

from django.db import migrations, models

_KNOWN = """
UPDATE usage_ledgerday d SET has_jobs = true
WHERE EXISTS (SELECT FROM usage_jobentry e WHERE e.day = d.day)
"""


class Migration(migrations.Migration):
    dependencies = [("usage", "0002_job_entries")]

    operations = [
        migrations.AddField("ledgerday", "has_jobs", models.BooleanField(db_default=False, default=False)),
        migrations.RunSQL(_KNOWN, migrations.RunSQL.noop),
        migrations.AddIndex(
            "ledgerday",
            models.Index(condition=models.Q(("has_jobs", False)), fields=["day"], name="ledger_day_without_jobs"),
        ),
    ]
