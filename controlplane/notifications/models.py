"""The choices of users about mail on ended jobs and the ends still to be mailed; webhooks and what they are still to be
told.

Rows are deleted with their user and job by database constraints, so also by a release that does not know these tables.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project, Sealed, slug
from controlplane.jobs.models import Job

# Events of ``notify`` that are ends of jobs.
ENDS = ("completed", "failed", "cancelled")


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
    """An event of a job to be mailed to its user; a trigger writes it together with the event.

    ``event`` is the one that the job file names under ``notify``; it is empty for an end that the user's choice names.
    ``mail`` is the mail that includes it, together with other notices, from when a worker claimed it (``claimed_at``);
    ``sent_at`` is when the mail server accepted it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="notices", db_constraint=False, db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notices", db_constraint=False
    )
    event = models.CharField(max_length=12, default="", db_default="")
    at = models.DateTimeField()
    mail = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["at"], name="notice_at"),
            models.Index(fields=["claimed_at"], name="notice_on_its_way", condition=~Q(mail=None) & Q(sent_at=None)),
            models.Index(fields=["mail"], name="notice_of_mail"),
            models.Index(fields=["job"], name="notice_of_job"),
        ]
        constraints = [
            # Of what happens again and again, one is enough until it is mailed.
            models.UniqueConstraint(fields=["job", "event"], name="notice_once_until_mailed", condition=Q(mail=None))
        ]

    @property
    def word(self) -> str:
        """What happened, as the mail says it: the state of an ended job, else the event."""
        return self.job.state if self.event in ("", *ENDS) else self.event.replace("_", " ").upper()


class Webhook(Sealed):
    """An address that is told of changes of a project's jobs; the sealed content is the key of its signatures.

    ``format`` is how it is told, ``states`` are those that are told, unless it is switched off; with ``budgets`` also
    that a budget of the project is 80 % or all used. ``has_secret`` is whether the secret of a chat's robot follows the
    key in the sealed content. ``tried_at`` is when a
    worker last took deliveries of it, ``retry_at`` until when nobody does again; ``failures`` counts failed tries since
    the last success, ``fault`` is the code of the last.
    """

    class Format(models.TextChoices):
        CLOUDEVENTS = "cloudevents", "CloudEvents"
        SLACK = "slack", "Slack"
        FEISHU = "feishu", "Feishu"
        DINGTALK = "dingtalk", "DingTalk"
        WECOM = "wecom", "WeCom"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="webhooks", db_constraint=False)
    name = models.CharField(max_length=63, validators=[slug])
    url = models.CharField(max_length=500)
    format = models.CharField(
        max_length=16, choices=Format.choices, default=Format.CLOUDEVENTS, db_default=Format.CLOUDEVENTS
    )
    states = models.JSONField()
    budgets = models.BooleanField(default=False, db_default=False)
    has_secret = models.BooleanField(default=False, db_default=False)
    is_active = models.BooleanField(default=True, db_default=True)
    made_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)
    fault = models.CharField(max_length=40, blank=True, default="")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="webhook_name_once_per_project")]

    def __str__(self) -> str:
        return self.name

    def context(self) -> str:
        return f"webhook {self.id}"


class WebhookDelivery(models.Model):
    """A change to be told; a trigger writes it together with the change. Deleted once it was delivered.

    ``resent_at`` is when somebody asked for it again after it had been given up.
    """

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", db_constraint=False)
    event = models.UUIDField()
    at = models.DateTimeField()
    data = models.JSONField()
    resent_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        indexes = [models.Index(fields=["at"], name="webhook_delivery_at")]


class TriedDelivery(models.Model):
    """How telling one change went: the newest of its ``tries``, of which the last was at ``tried_at`` and took
    ``took_s``.

    ``status`` is what was answered, if anything was; ``fault`` is empty once it was accepted. Of the answer itself
    nothing is kept, and ``data`` is only there to be sent again.
    """

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="tried", db_constraint=False)
    event = models.UUIDField()
    at = models.DateTimeField()
    data = models.JSONField()
    tries = models.PositiveIntegerField()
    tried_at = models.DateTimeField()
    took_s = models.FloatField()
    status = models.PositiveSmallIntegerField(null=True)
    fault = models.CharField(max_length=40, blank=True)

    class Meta:
        verbose_name_plural = "tried deliveries"
        ordering = ["-tried_at", "-id"]
        indexes = [models.Index(fields=["tried_at"], name="tried_delivery_at")]
        constraints = [models.UniqueConstraint(fields=["webhook", "event"], name="tried_delivery_once")]
