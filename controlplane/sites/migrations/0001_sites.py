"""Sites, their tokens and our jobs there."""

import django.core.validators
import django.db.models.deletion
from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations, models

from controlplane.accounts import roles

# By the database, because the release before this one knows nothing of the tables and removes what they point at.
CASCADES = """
ALTER TABLE sites_site ADD CONSTRAINT site_node FOREIGN KEY (node_id) REFERENCES fleet_node (id)
    ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE sites_sitetoken ADD CONSTRAINT site_token_site FOREIGN KEY (site_id) REFERENCES sites_site (id)
    ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE sites_sitejob
    ADD CONSTRAINT site_job_site FOREIGN KEY (site_id) REFERENCES sites_site (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT site_job_part FOREIGN KEY (part_id) REFERENCES jobs_part (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
"""


def grant(apps, schema_editor):
    """Gives the permissions to the roles; they are made now, and not by Django after all migrations."""
    config = apps.get_app_config("sites")
    config.models_module = installed.get_app_config("sites").models_module
    create_permissions(config, verbosity=0, apps=apps)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="sites")
    for group in apps.get_model("auth", "Group").objects.filter(name__in=roles.ROLES):
        group.permissions.add(*(one for one in found if f"sites.{one.codename}" in roles.ROLES[group.name]))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("fleet", "0024_node_is_site"),
        ("jobs", "0047_ordinary_jobs"),
    ]

    operations = [
        migrations.CreateModel(
            name="Site",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z",
                                "Use 1 to 63 lower-case letters, digits and hyphens; begin and end with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("url", models.CharField(help_text="Such as https://yard.example.org.", max_length=300)),
                (
                    "fingerprint",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="SHA-256 of its certificate: no other is accepted. Empty if an authority vouches for it.",
                        max_length=64,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[0-9a-f]{64}\\Z", "the SHA-256 of its certificate: 64 hexadecimal digits"
                            )
                        ],
                    ),
                ),
                (
                    "project",
                    models.CharField(blank=True, default="", help_text="The project of our jobs there.", max_length=63),
                ),
                (
                    "pools",
                    models.JSONField(blank=True, default=list, help_text="The pools there that our jobs may use."),
                ),
                (
                    "locations",
                    models.JSONField(blank=True, default=list, help_text="Places whose data are at this site."),
                ),
                (
                    "price",
                    models.FloatField(
                        default=0.0,
                        help_text="What an hour of a device costs there, to choose between sites.",
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                    ),
                ),
                (
                    "patience_s",
                    models.PositiveIntegerField(
                        default=60,
                        help_text="A job waits here so long at least.",
                        validators=[django.core.validators.MaxValueValidator(2592000)],
                    ),
                ),
                (
                    "gain_s",
                    models.PositiveIntegerField(
                        default=60,
                        help_text="It leaves only to end so much earlier there.",
                        validators=[django.core.validators.MaxValueValidator(2592000)],
                    ),
                ),
                (
                    "most_jobs",
                    models.PositiveIntegerField(
                        default=100,
                        help_text="Never more of our jobs there at once.",
                        validators=[django.core.validators.MaxValueValidator(10000)],
                    ),
                ),
                (
                    "lost_after_s",
                    models.PositiveIntegerField(
                        default=900,
                        help_text="After so long without an answer, jobs that say so start again elsewhere.",
                        validators=[
                            django.core.validators.MinValueValidator(60),
                            django.core.validators.MaxValueValidator(2592000),
                        ],
                    ),
                ),
                ("enabled", models.BooleanField(default=True, help_text="If not, no further job leaves for it.")),
                ("capacity", models.JSONField(default=dict, editable=False)),
                ("capacity_at", models.DateTimeField(editable=False, null=True)),
                ("condition", models.CharField(blank=True, default="", editable=False, max_length=400)),
                ("said", models.JSONField(default=list, editable=False)),
                ("condition_at", models.DateTimeField(editable=False, null=True)),
                ("failures", models.PositiveIntegerField(default=0, editable=False)),
                ("retry_at", models.DateTimeField(editable=False, null=True)),
                ("answered_at", models.DateTimeField(editable=False, null=True)),
                (
                    "node",
                    models.OneToOneField(
                        db_constraint=False,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="site",
                        to="fleet.node",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="SiteToken",
            fields=[
                ("ciphertext", models.BinaryField()),
                ("wrapped_key", models.BinaryField()),
                ("key_id", models.CharField(db_index=True, max_length=200)),
                (
                    "site",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="token",
                        serialize=False,
                        to="sites.site",
                    ),
                ),
                ("set_at", models.DateTimeField()),
                ("set_by", models.CharField(max_length=150)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="SiteJob",
            fields=[
                (
                    "part",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="away",
                        serialize=False,
                        to="jobs.part",
                    ),
                ),
                ("key", models.CharField(max_length=60, unique=True)),
                ("asked_at", models.DateTimeField(null=True)),
                ("number", models.BigIntegerField(null=True)),
                ("state", models.CharField(blank=True, default="", max_length=10)),
                ("reason", models.CharField(blank=True, default="", max_length=300)),
                ("fault", models.CharField(blank=True, default="", max_length=40)),
                ("looked_at", models.DateTimeField(null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                ("log_attempt", models.PositiveIntegerField(default=0)),
                ("log_at", models.JSONField(default=dict)),
                ("over_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "site",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="jobs",
                        to="sites.site",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
                "indexes": [models.Index(condition=models.Q(("over_at", None)), fields=["site"], name="site_job_open")],
            },
        ),
        migrations.RunSQL(CASCADES, migrations.RunSQL.noop),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
