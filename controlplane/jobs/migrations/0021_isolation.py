"""The scheduler looks at nodes again when they keep projects apart in another way, or their pools ask for another."""

from django.db import migrations

NODE = (
    "{0}.name, {0}.state, {0}.labels, {0}.container_engine, {0}.fetch_gbps, {0}.load, {0}.conditions->'disk_pressure'"
)
POOL = "{0}.name, {0}.storage_path, {0}.min_runtime_s, {0}.repartition"
CREATE = """
DROP TRIGGER {trigger} ON {table};
CREATE TRIGGER {trigger} AFTER UPDATE ON {table} FOR EACH ROW
    WHEN (({old}) IS DISTINCT FROM ({new})) EXECUTE FUNCTION {function}();
"""


def created(columns: str, trigger: str, table: str, function: str) -> str:
    told = {"old": columns.format("OLD"), "new": columns.format("NEW")}
    return CREATE.format(trigger=trigger, table=table, function=function, **told)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0020_full_disks"), ("pools", "0010_isolation")]
    operations = [
        migrations.RunSQL(created(columns + ", {0}.isolation", *names), created(columns, *names))
        for columns, *names in (
            (NODE, "node_changed", "fleet_node", "yard_node_changed"),
            (POOL, "pool_told", "pools_pool", "yard_all_changed"),
        )
    ]
