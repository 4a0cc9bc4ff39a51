"""Traces and results of simulations move from rows into the storage; rows say what they are called there."""

import hashlib
import json
import uuid

from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import migrations, models


def keep(what, content):
    """Keeps bytes under a name of their own; the name, how many they are, and their digest."""
    name = uuid.uuid4().hex
    name = f"{name[:2]}/{name}-{what}"
    storages["simulations"].save(name, ContentFile(content))
    return name, len(content), hashlib.sha256(content).hexdigest()


def read(name):
    with storages["simulations"].open(name) as file:
        return file.read()


def into_storage(apps, schema_editor):
    for row in apps.get_model("simulations", "Simulation").objects.order_by("pk").iterator(chunk_size=8):
        trace = row.scenario.get("trace") or {}
        if isinstance(trace.get("text"), str):
            row.trace, row.trace_bytes, row.trace_sha256 = keep("trace", trace.pop("text").encode())
        if row.in_row is not None:
            content = json.dumps(row.in_row, separators=(",", ":")).encode()
            row.result, row.result_bytes, row.result_sha256 = keep("result", content)
        row.save()


def into_rows(apps, schema_editor):
    """Puts the bytes back into rows, for the release before this one."""
    for row in apps.get_model("simulations", "Simulation").objects.order_by("pk").iterator(chunk_size=8):
        if row.trace:
            row.scenario.setdefault("trace", {})["text"] = read(row.trace).decode()
        if row.result:
            row.in_row = json.loads(read(row.result))
        row.save()
        for name in filter(None, (row.trace, row.result)):
            storages["simulations"].delete(name)


class Migration(migrations.Migration):
    dependencies = [("simulations", "0001_initial")]
    operations = [
        migrations.RenameField("simulation", "result", "in_row"),
        *(
            migrations.AddField("simulation", name, field, preserve_default=name.endswith("_bytes"))
            for what in ("trace", "result")
            for name, field in (
                (what, models.CharField(blank=True, max_length=100, default="")),
                (f"{what}_bytes", models.BigIntegerField(default=0)),
                (f"{what}_sha256", models.CharField(blank=True, max_length=64, default="")),
            )
        ),
        migrations.RunPython(into_storage, into_rows),
        migrations.RemoveField("simulation", "in_row"),
    ]
