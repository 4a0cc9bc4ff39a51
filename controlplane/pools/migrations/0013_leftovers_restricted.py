"""A pool says itself that it is restricted. One that names a project or a group is, whoever writes that: also a server of
the release before."""

from django.db import migrations, models

MARK = """
UPDATE pools_pool p SET restricted = true
WHERE EXISTS (SELECT FROM pools_pool_allowed_projects a WHERE a.pool_id = p.id)
   OR EXISTS (SELECT FROM pools_pool_allowed_groups a WHERE a.pool_id = p.id)
"""

TRIGGERS = """
CREATE FUNCTION yard_pool_restricted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pools_pool SET restricted = true WHERE id = NEW.pool_id AND NOT restricted;
    RETURN NULL;
END $$;
CREATE TRIGGER pool_projects_restrict AFTER INSERT ON pools_pool_allowed_projects
    FOR EACH ROW EXECUTE FUNCTION yard_pool_restricted();
CREATE TRIGGER pool_groups_restrict AFTER INSERT ON pools_pool_allowed_groups
    FOR EACH ROW EXECUTE FUNCTION yard_pool_restricted();
"""
TRIGGERS_BACK = """
DROP TRIGGER pool_groups_restrict ON pools_pool_allowed_groups;
DROP TRIGGER pool_projects_restrict ON pools_pool_allowed_projects;
DROP FUNCTION yard_pool_restricted();
"""


class Migration(migrations.Migration):
    dependencies = [("pools", "0012_roles_access")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="restricted",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Only jobs of the projects and groups below may use this pool; where none is left, nobody's. "
                "Always so where one is chosen.",
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="allowed_projects",
            field=models.ManyToManyField(
                blank=True,
                help_text="Whose jobs may use this pool, where it is restricted.",
                related_name="+",
                to="access.project",
            ),
        ),
        migrations.RunSQL(TRIGGERS, TRIGGERS_BACK),
        migrations.RunSQL(MARK, migrations.RunSQL.noop),
    ]
