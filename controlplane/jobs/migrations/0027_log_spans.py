"""The bytes of logs move from rows into files; rows tell how much of them counts and in which order they came."""

import django.db.models.deletion
from django.conf import settings
from django.db import connection, migrations, models


def into_files(apps, schema_editor):
    """Writes each chunk where it belongs, in the order of arrival, and a row for each run of one stream."""
    span_of = apps.get_model("jobs", "LogSpan")
    chunks = apps.get_model("jobs", "LogChunk").objects.order_by("part_id", "id")
    part, span, at = None, None, 0
    for chunk in chunks.iterator(chunk_size=64):
        if chunk.part_id != part:
            part, span, at = chunk.part_id, None, 0
        folder = settings.LOGS / part.hex[-2:] / str(part)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / chunk.stream).open("ab") as file:
            file.truncate(chunk.offset)
            file.write(bytes(chunk.data))
        if span is not None and span.stream == chunk.stream:
            span.size += chunk.size
            span.save(update_fields=["size"])
        else:
            span = span_of.objects.create(
                part_id=part, stream=chunk.stream, start=at, offset=chunk.offset, size=chunk.size
            )
        at += chunk.size


def into_rows(apps, schema_editor):
    """Puts the bytes back into rows, for the release before this one."""
    chunk_of = apps.get_model("jobs", "LogChunk")
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        (now,) = cursor.fetchone()
    for span in apps.get_model("jobs", "LogSpan").objects.order_by("part_id", "start").iterator():
        path = settings.LOGS / span.part_id.hex[-2:] / str(span.part_id) / span.stream
        with path.open("rb") as file:
            for at in range(0, span.size, 2**18):
                file.seek(span.offset + at)
                content = file.read(min(2**18, span.size - at))
                chunk_of.objects.create(
                    part_id=span.part_id, stream=span.stream, offset=span.offset + at, size=len(content), data=content,
                    at=now,
                )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("jobs", "0026_stage_indexes")]
    operations = [
        migrations.CreateModel(
            name="LogSpan",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream", models.CharField(max_length=3)),
                ("start", models.BigIntegerField()),
                ("offset", models.BigIntegerField()),
                ("size", models.BigIntegerField()),
                (
                    "part",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_spans",
                        to="jobs.part",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=["part", "start"], name="log_start_once"),
                    models.UniqueConstraint(fields=["part", "stream", "offset"], name="log_offset_of_stream_once"),
                    models.CheckConstraint(
                        condition=models.Q(("stream__in", ["out", "err"])), name="log_span_stream_known"
                    ),
                ],
            },
        ),
        migrations.RunPython(into_files, into_rows),
        migrations.DeleteModel("LogChunk"),
    ]
