"""Service accounts: users of a project that act by tokens and cannot sign in."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("access", "0007_people_time_zone")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="description",
            field=models.CharField(blank=True, db_default="", default="", max_length=200, verbose_name="description"),
        ),
        migrations.AddField(
            model_name="user",
            name="service_of",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="service_accounts",
                to="access.project",
            ),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=Q(service_of=None)
                | Q(is_staff=False, is_superuser=False, is_from_directory=False, password__startswith="!"),
                name="service_account_cannot_sign_in",
                violation_error_message="A service account has no password and no rights beyond its project.",
            ),
        ),
    ]
