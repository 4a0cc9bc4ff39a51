"""The scheduler looks at what waits again when a pool becomes restricted or open."""

from django.db import migrations

TRIGGER = """
DROP TRIGGER pool_told ON pools_pool;
CREATE TRIGGER pool_told AFTER UPDATE ON pools_pool FOR EACH ROW
    WHEN (({old}) IS DISTINCT FROM ({new})) EXECUTE FUNCTION yard_all_changed();
"""
BEFORE = "{0}.name, {0}.storage_path, {0}.min_runtime_s, {0}.repartition, {0}.isolation"


def told(columns: str) -> str:
    return TRIGGER.format(old=columns.format("OLD"), new=columns.format("NEW"))


class Migration(migrations.Migration):
    dependencies = [("jobs", "0030_roles_pool_access"), ("pools", "0013_leftovers_restricted")]
    operations = [migrations.RunSQL(told(BEFORE + ", {0}.restricted"), told(BEFORE))]
