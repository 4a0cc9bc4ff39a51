"""Functions that were deployed, and calls of them that wait in a queue."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from controlplane.jobs.written import WrittenField
from controlplane.services.models import InferenceService


class DeployedFunction(models.Model):
    """What makes a service a function: its file, and how it is called.

    ``options`` are as :mod:`controlplane.functions.options` reads them. ``code`` is the text where that was sent, to be
    shown; what replicas run is the bundle of the service's revision. :mod:`controlplane.functions.deploy` alone writes
    it.
    """

    service = models.OneToOneField(
        InferenceService, on_delete=models.CASCADE, related_name="function", primary_key=True, db_constraint=False
    )
    file = models.CharField(max_length=200)
    code = models.TextField(blank=True)
    options = WrittenField()

    def __str__(self) -> str:
        return str(self.service)


class CallState(models.TextChoices):
    """How a call stands: it waits, a router has it, its result is there, or it is given up."""

    QUEUED = "QUEUED", _("queued")
    RUNNING = "RUNNING", _("running")
    DONE = "DONE", _("done")
    DEAD = "DEAD", _("given up")


class FunctionCall(models.Model):
    """A call that somebody left for later: it is delivered at least once, and its result kept for a while.

    ``takes`` counts how often a router took it, ``tries`` how often it ran and failed. A router that took it has it
    until ``due_at``; then it is due again. ``event`` and ``result`` are JSON as text, which only members of its project
    may read. :mod:`controlplane.functions.calls` alone writes it.
    """

    function = models.ForeignKey(DeployedFunction, on_delete=models.CASCADE, related_name="calls", db_constraint=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False
    )
    key = models.CharField(max_length=100, blank=True, help_text=_("By which the caller leaves it once."))
    state = models.CharField(max_length=10, choices=CallState, default=CallState.QUEUED)
    takes = models.PositiveIntegerField(default=0)
    tries = models.PositiveIntegerField(default=0)
    event = models.TextField()
    size_bytes = models.PositiveIntegerField()
    status = models.PositiveSmallIntegerField(null=True)
    result = models.TextField(blank=True)
    fault = models.CharField(max_length=500, blank=True)
    made_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now())
    taken_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["function", "key"], name="call_once_per_key", condition=~Q(key=""))
        ]
        indexes = [
            models.Index(fields=["due_at"], name="call_open", condition=Q(ended_at=None)),
            models.Index(fields=["function", "-id"], name="call_of_function"),
        ]

    def __str__(self) -> str:
        return f"call {self.pk}"
