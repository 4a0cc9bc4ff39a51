"""The scheduler looks at a node again when a check of its operator's fails, or passes again."""

from django.db import migrations

SEEN = (
    "{0}.name, {0}.state, {0}.labels, {0}.container_engine, {0}.fetch_gbps, {0}.load, {0}.isolation, "
    "{0}.conditions->'disk_pressure'"
)
UNFIT = ", {0}.conditions->'unfit'"
CREATE = """
DROP TRIGGER node_changed ON fleet_node;
CREATE TRIGGER node_changed AFTER UPDATE ON fleet_node FOR EACH ROW
    WHEN (({old}) IS DISTINCT FROM ({new})) EXECUTE FUNCTION yard_node_changed();
"""


def created(columns: str) -> str:
    return CREATE.format(old=columns.format("OLD"), new=columns.format("NEW"))


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_isolation")]
    operations = [migrations.RunSQL(created(SEEN + UNFIT), created(SEEN))]
