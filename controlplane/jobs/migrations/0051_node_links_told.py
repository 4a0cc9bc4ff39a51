"""The scheduler looks at a node again when a measured link to it changes."""

from django.db import migrations

FEED = """
CREATE FUNCTION yard_link_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (node_id) VALUES (coalesce(NEW.target_id, OLD.target_id));
    RETURN NULL;
END $$;
CREATE TRIGGER link_come_or_gone AFTER INSERT OR DELETE ON fleet_nodelink
    FOR EACH ROW EXECUTE FUNCTION yard_link_changed();
CREATE TRIGGER link_changed AFTER UPDATE ON fleet_nodelink FOR EACH ROW
    WHEN (OLD.gbps IS DISTINCT FROM NEW.gbps) EXECUTE FUNCTION yard_link_changed();
"""
FEED_BACK = """
DROP TRIGGER link_changed ON fleet_nodelink;
DROP TRIGGER link_come_or_gone ON fleet_nodelink;
DROP FUNCTION yard_link_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0050_saves_ahead"), ("fleet", "0026_node_links")]
    operations = [migrations.RunSQL(FEED, FEED_BACK)]
