"""Services, their revisions and replicas, and what the routers counted of them."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project, slug
from controlplane.jobs.written import WrittenField

# Below the ports that systems give to outgoing connections, and apart from those of gangs.
FIRST_PORT: Final = 24_000
LAST_PORT: Final = 28_999


class InferenceService(models.Model):
    """A model that answers requests: as many replicas of its present revision as ``wanted`` says.

    ``revision`` is the number of the one that is to serve, ``former`` of the last that did, which goes on where the new
    one cannot. ``settings`` is what of the file needs no new replicas (see ``services.file``). ``queued``, ``active``,
    ``tokens`` and ``asked_at`` are of the newest report of a router: how many requests wait and are answered, how much
    there is to read and to write of them, and when one came last. ``wishes`` is what the autoscaler remembers of the
    last minutes. A service that is deleted keeps its
    row until its replicas have ended. :mod:`controlplane.services.service` and ``.replicas`` alone write it.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="services", db_constraint=False)
    name = models.CharField(max_length=63, validators=[slug])
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="services", db_constraint=False
    )
    revision = models.PositiveIntegerField(default=1)
    former = models.PositiveIntegerField(null=True)
    settings = models.JSONField()
    wanted = models.PositiveIntegerField(default=1)
    wishes = models.JSONField(default=list)
    queued = models.PositiveIntegerField(default=0)
    active = models.PositiveIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    asked_at = models.DateTimeField(null=True)
    heard_at = models.DateTimeField(null=True, help_text=_("When a router reported last."))
    fault = models.CharField(max_length=500, blank=True)
    made_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"], name="service_once_per_project", condition=Q(deleted_at=None)
            )
        ]

    def __str__(self) -> str:
        return f"{self.project.name}/{self.name}"


class ServiceRevision(models.Model):
    """A version of what the replicas of a service run.

    ``ready_at`` is when a replica of it first answered. ``failures`` counts replicas in a row that ended without having
    served for long; after too many of one that never answered it ``is_failed``. One that serves a promoted model has
    that of the job with the number ``model_job``: ``model`` names the stage, its output and the digest, and has the
    numbers that were ``reported`` of it. The job is kept as long as the revision.
    """

    service = models.ForeignKey(
        InferenceService, on_delete=models.CASCADE, related_name="revisions", db_constraint=False
    )
    number = models.PositiveIntegerField()
    file = WrittenField(help_text=_("The service file."))
    template = WrittenField(help_text=_("What is submitted for a replica, without its own variables."))
    health = models.CharField(max_length=200)
    bundle = models.CharField(max_length=64, blank=True)
    model_job = models.BigIntegerField(null=True)
    model = models.JSONField(default=dict, db_default={})
    made_by = models.CharField(max_length=150)
    made_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    is_failed = models.BooleanField(default=False)
    fault = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["service", "number"], name="revision_once_per_service")]
        indexes = [
            models.Index(fields=["bundle"], name="revision_of_bundle", condition=~Q(bundle="")),
            models.Index(fields=["model_job"], name="revision_of_job", condition=Q(model_job__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.service} revision {self.number}"


class Replica(models.Model):
    """One copy of a service: a job, and the port at which it answers.

    ``job`` is the number of its job. ``is_healthy``, ``outstanding``, ``load`` (``router.protocol.EngineLoad``) and
    ``fault`` are as a router reported at ``news_at``; ``is_left`` once a router sends it nothing more. ``ready_at`` is
    when it first answered.
    """

    revision = models.ForeignKey(
        ServiceRevision, on_delete=models.CASCADE, related_name="replicas", db_constraint=False
    )
    job = models.BigIntegerField(null=True)
    port = models.PositiveIntegerField()
    is_healthy = models.BooleanField(default=False)
    outstanding = models.PositiveIntegerField(default=0)
    load = models.JSONField(default=dict, db_default={})
    is_left = models.BooleanField(default=False)
    news_at = models.DateTimeField(null=True)
    made_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True)
    drains_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    fault = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["port"], name="replica_port_once", condition=Q(ended_at=None)),
            models.CheckConstraint(
                condition=Q(port__gte=FIRST_PORT, port__lte=LAST_PORT), name="replica_port_in_range"
            ),
        ]
        indexes = [models.Index(fields=["revision"], name="replica_open", condition=Q(ended_at=None))]

    def __str__(self) -> str:
        return f"replica {self.pk}"


class ServiceMinute(models.Model):
    """What the routers counted of a service in one minute.

    ``first_bytes`` are counts of times to the first byte by ``router.protocol.BOUNDS``; ``queued`` and ``replicas`` are
    the most of the minute. ``errors`` are answers of replicas with a status of 500 or more, ``cold`` requests that
    waited for a first replica, the longest of them ``cold_ms`` milliseconds.
    """

    service = models.ForeignKey(InferenceService, on_delete=models.CASCADE, related_name="minutes", db_constraint=False)
    at = models.DateTimeField()
    requests = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    refused = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)
    errors = models.PositiveBigIntegerField(default=0, db_default=0)
    cold = models.PositiveBigIntegerField(default=0, db_default=0)
    cold_ms = models.PositiveBigIntegerField(default=0, db_default=0)
    queued = models.PositiveIntegerField(default=0)
    replicas = models.PositiveIntegerField(default=0)
    first_bytes = models.JSONField(default=list)

    class Meta:
        ordering = ["-at"]
        constraints = [models.UniqueConstraint(fields=["service", "at"], name="minute_once_per_service")]

    def __str__(self) -> str:
        return f"{self.service} {self.at:%Y-%m-%d %H:%M}"


class Promotion(models.Model):
    """The promotion of a model to a service, one for each attempt that completed a stage with ``promote``.

    ``asked`` is what the job file says, ``reported`` what the stage had reported when it completed. ``state`` says how
    far it is; ``said`` are the clauses of ``detail``, which tells why. ``revision`` is that which it made, ``former``
    the one that served before. ``answers``, ``errors`` and ``first_bytes`` are what the routers counted of its replicas
    during the trial, which began at ``trial_at``. :mod:`controlplane.services.promotions` alone writes it.
    """

    class PromotionState(models.TextChoices):
        WAITING = "WAITING", _("waits")
        TRIAL = "TRIAL", _("on trial")
        PROMOTED = "PROMOTED", _("promoted")
        REFUSED = "REFUSED", _("refused")
        ROLLED_BACK = "ROLLED_BACK", _("rolled back")
        REPLACED = "REPLACED", _("replaced")

    attempt = models.UUIDField(unique=True)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="promotions", db_constraint=False)
    service = models.ForeignKey(
        InferenceService, null=True, on_delete=models.SET_NULL, related_name="promotions", db_constraint=False
    )
    name = models.CharField(max_length=63, help_text=_("The name of the service."))
    job = models.BigIntegerField()
    stage = models.CharField(max_length=63)
    user = models.CharField(max_length=150, help_text=_("The owner of the job when it was judged."))
    asked = models.JSONField()
    reported = models.JSONField(default=dict)
    state = models.CharField(max_length=11, choices=PromotionState, default=PromotionState.WAITING)
    detail = models.CharField(max_length=500, blank=True)
    said = models.JSONField(default=list)
    value = models.FloatField(null=True)
    revision = models.PositiveIntegerField(null=True)
    former = models.PositiveIntegerField(null=True)
    answers = models.PositiveBigIntegerField(default=0)
    errors = models.PositiveBigIntegerField(default=0)
    first_bytes = models.JSONField(default=list)
    made_at = models.DateTimeField()
    trial_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["WAITING", "TRIAL", "PROMOTED", "REFUSED", "ROLLED_BACK", "REPLACED"]),
                name="promotion_state_known",
            ),
            models.UniqueConstraint(
                fields=["service"], condition=Q(state="TRIAL"), name="one_promotion_on_trial_per_service"
            ),
        ]
        indexes = [
            models.Index(fields=["id"], name="promotion_open", condition=Q(ended_at=None)),
            models.Index(fields=["job"], name="promotion_of_job"),
        ]

    def __str__(self) -> str:
        return f"job #{self.job} to {self.name}"
