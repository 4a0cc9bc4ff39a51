"""The choices of users about mail on ended jobs, and the ends still to be mailed.

Rows are deleted with their user and job by database constraints, so also by a release that does not know these tables.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.jobs.models import Job


class NoticeChoice(models.Model):
    """Which ends of their jobs a user gets by mail, in which language. Users without a row get none."""

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
    """The end of a job to be mailed to its user; a trigger writes it together with the end.

    ``mail`` is the mail that includes it, together with other notices, from when a worker claimed it (``claimed_at``);
    ``sent_at`` is when the mail server accepted it.
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
