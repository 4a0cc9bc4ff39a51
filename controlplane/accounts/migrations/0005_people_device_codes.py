"""Codes by which a person signs a program in, and users whom the directory signs in."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0005_roles"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="is_from_directory",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether the LDAP directory may sign this user in.",
                verbose_name="signs in by the directory",
            ),
        ),
        migrations.CreateModel(
            name="DeviceCode",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("code", models.CharField(max_length=8, unique=True)),
                ("name", models.CharField(max_length=60)),
                ("address", models.CharField(db_index=True, max_length=100)),
                ("scopes", models.JSONField()),
                ("days", models.PositiveSmallIntegerField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(db_index=True)),
                ("asked_at", models.DateTimeField(null=True)),
                ("interval_s", models.PositiveSmallIntegerField(default=5)),
                (
                    "answer",
                    models.CharField(
                        blank=True,
                        choices=[("", "None"), ("confirmed", "Confirmed"), ("refused", "Refused")],
                        max_length=9,
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
    ]
