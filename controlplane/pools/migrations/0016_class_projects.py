"""Priority classes may be for some projects only. One that names a project is, whoever writes that."""

from django.db import migrations, models

TRIGGER = """
CREATE FUNCTION yard_class_projects_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pools_priorityclass SET projects_only = true WHERE name = NEW.priorityclass_id AND NOT projects_only;
    RETURN NULL;
END $$;
CREATE TRIGGER class_projects_restrict AFTER INSERT ON pools_priorityclass_allowed_projects
    FOR EACH ROW EXECUTE FUNCTION yard_class_projects_only();
"""
TRIGGER_BACK = """
DROP TRIGGER class_projects_restrict ON pools_priorityclass_allowed_projects;
DROP FUNCTION yard_class_projects_only();
"""


class Migration(migrations.Migration):
    dependencies = [("access", "0007_people_time_zone"), ("pools", "0015_budgets")]

    operations = [
        migrations.AlterField(
            model_name="priorityclass",
            name="staff_only",
            field=models.BooleanField(
                default=False,
                help_text="Only leads of a project may use it there, and who may use any priority.",
            ),
        ),
        migrations.AddField(
            model_name="priorityclass",
            name="projects_only",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Only jobs of the projects below may use this class; where none is left, nobody's. Always so "
                "where one is chosen. Waiting jobs keep the class that they have.",
            ),
        ),
        migrations.AddField(
            model_name="priorityclass",
            name="allowed_projects",
            field=models.ManyToManyField(
                blank=True,
                help_text="Whose jobs may use this class, where it is for some only.",
                related_name="+",
                to="access.project",
            ),
        ),
        migrations.RunSQL(TRIGGER, TRIGGER_BACK),
    ]
