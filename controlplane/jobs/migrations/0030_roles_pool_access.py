"""The change feed tells of who may use which pool."""

from __future__ import annotations

from django.db import migrations

FEED = """
CREATE TRIGGER pool_projects_told AFTER INSERT OR DELETE ON pools_pool_allowed_projects
    FOR EACH STATEMENT EXECUTE FUNCTION yard_all_changed();
CREATE TRIGGER pool_groups_told AFTER INSERT OR DELETE ON pools_pool_allowed_groups
    FOR EACH STATEMENT EXECUTE FUNCTION yard_all_changed();
CREATE FUNCTION yard_user_group_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_change (stage_id) SELECT s.id FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id
    WHERE j.user_id = coalesce(NEW.user_id, OLD.user_id) AND s.state IN ('HELD', 'PENDING');
    RETURN NULL;
END $$;
CREATE TRIGGER user_group_come_or_gone AFTER INSERT OR DELETE ON access_user_groups
    FOR EACH ROW EXECUTE FUNCTION yard_user_group_changed();
"""
FEED_BACK = """
DROP TRIGGER user_group_come_or_gone ON access_user_groups;
DROP FUNCTION yard_user_group_changed();
DROP TRIGGER pool_groups_told ON pools_pool_allowed_groups;
DROP TRIGGER pool_projects_told ON pools_pool_allowed_projects;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0029_secrets"), ("pools", "0012_roles_access"), ("access", "0006_secrets")]
    operations = [migrations.RunSQL(FEED, FEED_BACK)]
