"""The scheduler looks at a node again when the folders of which stages may mount something change."""

from importlib import import_module

from django.db import migrations

earlier = import_module("controlplane.jobs.migrations.0022_unfit")
SEEN = earlier.SEEN + earlier.UNFIT
MOUNTS = ", {0}.mounts"


class Migration(migrations.Migration):
    dependencies = [("jobs", "0040_git_sources"), ("fleet", "0022_mounts")]
    operations = [migrations.RunSQL(earlier.created(SEEN + MOUNTS), earlier.created(SEEN))]
