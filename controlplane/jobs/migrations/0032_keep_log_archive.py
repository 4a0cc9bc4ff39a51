"""Rows say how much of a log lies in the archive; the way back puts logs into files again."""

from django.db import migrations, models


def bring_back(apps, schema_editor):
    from controlplane.jobs.log_archive import bring_back

    moved = apps.get_model("jobs", "PartLog").objects.exclude(archived_out=0, archived_err=0)
    for part in moved.values_list("part_id", flat=True).iterator():
        bring_back(part)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0031_leftovers_restricted")]
    operations = [
        migrations.AddField("partlog", "archived_out", models.BigIntegerField(db_default=0)),
        migrations.AddField("partlog", "archived_err", models.BigIntegerField(db_default=0)),
        migrations.AddField("partlog", "archived_at", models.DateTimeField(null=True)),
        migrations.AddField("partlog", "archive_tried_at", models.DateTimeField(null=True)),
        migrations.AddIndex(
            "partlog",
            models.Index(
                fields=["written_at"],
                name="log_not_archived",
                condition=models.Q(gone_at__isnull=True, archived_at__isnull=True),
            ),
        ),
        migrations.RunPython(migrations.RunPython.noop, bring_back),
    ]
