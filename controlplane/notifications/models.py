"""Who is told of the ends of their jobs, and which ends they have yet to be told of.

Rows go with their user and job by constraints of the migration, so also where a release that does not know these tables
removes those.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.jobs.models import Job


class NoticeChoice(models.Model):
    """Which of their jobs' ends a user is told of by mail, in which language. Who has none is told of none."""

    class Ends(models.TextChoices):
        FAILED = "failed", _("failed jobs")
        ALL = "all", _("all jobs that end")

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="notice_choice",
        db_constraint=False,
    )
    ends = models.CharField(max_length=8, choices=Ends.choices)
    language = models.CharField(max_length=10)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(ends__in=["failed", "all"]), name="notice_ends_known")]


class Notice(models.Model):
    """The end of a job of which its user is to be told; a trigger writes it with the end itself.

    ``mail`` is the mail that tells it, with all other notices of that mail, from when a worker took it
    (``claimed_at``); ``sent_at`` is when the mail server had taken it.
    """

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="notice", db_constraint=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notices", db_constraint=False
    )
    at = models.DateTimeField()
    mail = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["at"], name="notice_at"),
            models.Index(fields=["claimed_at"], name="notice_on_its_way", condition=~Q(mail=None) & Q(sent_at=None)),
            models.Index(fields=["mail"], name="notice_of_mail"),
        ]
