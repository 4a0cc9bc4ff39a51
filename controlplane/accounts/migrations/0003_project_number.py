"""Each project gets a number that no other project ever has: nodes give it a user of its own by it."""

from django.db import migrations, models
from django.db.models import Value
from django.db.models.expressions import Func


class Migration(migrations.Migration):
    dependencies = [("access", "0002_tries")]
    operations = [
        migrations.RunSQL("CREATE SEQUENCE access_project_number", "DROP SEQUENCE access_project_number"),
        migrations.AddField(
            "project",
            "number",
            models.PositiveIntegerField(
                db_default=Func(Value("access_project_number"), function="nextval"), editable=False, null=True
            ),
        ),
        migrations.RunSQL(
            "UPDATE access_project SET number = nextval('access_project_number') WHERE number IS NULL",
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            "project",
            "number",
            models.PositiveIntegerField(
                db_default=Func(Value("access_project_number"), function="nextval"), editable=False, unique=True
            ),
        ),
    ]
