"""Each event knows the project of its job: what happened in few projects is found without reading what happened in all."""

import django.db.models.deletion
from django.db import migrations, models

FILL = """
CREATE FUNCTION yard_event_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.project_id IS NULL THEN
        SELECT project_id INTO NEW.project_id FROM jobs_job WHERE id = NEW.job_id;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER event_project BEFORE INSERT ON jobs_event FOR EACH ROW EXECUTE FUNCTION yard_event_project();
ALTER TABLE jobs_event DISABLE TRIGGER event_append_only;
SET LOCAL statement_timeout = 0;
UPDATE jobs_event e SET project_id = j.project_id FROM jobs_job j WHERE j.id = e.job_id;
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE jobs_event ENABLE TRIGGER event_append_only;
"""
FORGET = """
DROP TRIGGER event_project ON jobs_event;
DROP FUNCTION yard_event_project();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0024_sessions"), ("access", "0003_project_number")]
    operations = [
        migrations.AddField(
            "event",
            "project",
            models.ForeignKey(
                null=True,
                editable=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="events",
                to="access.project",
            ),
        ),
        migrations.RunSQL(FILL, FORGET),
        migrations.AddIndex("event", models.Index(fields=["project", "-id"], name="event_of_project")),
    ]
