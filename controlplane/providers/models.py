"""Providers, and the pilots that they have started."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import slug
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.pools.models import Pool
from controlplane.providers import kinds, shapes, typed

MOST_NODES = 1_000
MOST_HOURS = 720.0


def make_tag() -> str:
    """Return what the labels of a provider's pilots begin with: no other provider anywhere has the same."""
    return secrets.token_hex(6)


class NodeProvider(models.Model):
    """A foreign engine that runs this cluster's agents, as nodes of ``pool``, while there is work for them.

    ``settings`` and the keys that ``shapes`` may have are those of its ``kind``. A pilot lasts ``hours``; all of the
    last 30 days may take ``budget_node_hours``. What follows ``enabled`` is written by
    :mod:`controlplane.providers.service` only: ``condition`` is why nothing can be done now, empty if all is well, with
    ``said`` in clauses; after ``failures`` in a row the engine is asked again at ``retry_at``.
    """

    name = models.CharField(max_length=40, unique=True, validators=[slug])
    kind = models.CharField(max_length=20, help_text=_("The engine: slurm, ray, kubernetes, command or local."))
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="providers", db_constraint=False)
    settings = models.JSONField(default=dict, blank=True, help_text=_("What this kind of engine needs to know."))
    shapes = models.JSONField(
        default=list, help_text=_("The machines that it brings: [{name, cpus, memory_gib, devices}].")
    )
    min_nodes = models.PositiveIntegerField(
        default=0, validators=[MaxValueValidator(MOST_NODES)], help_text=_("So many nodes stay, also without work.")
    )
    max_nodes = models.PositiveIntegerField(
        default=1, validators=[MaxValueValidator(MOST_NODES)], help_text=_("Never more nodes than these at once.")
    )
    hours = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(1 / 60), MaxValueValidator(MOST_HOURS)],
        help_text=_("For how long each node is asked for; stages that may take longer do not run there."),
    )
    budget_node_hours = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(1e9)],
        help_text=_("How many hours of nodes any 30 days may take; empty means any number."),
    )
    idle_s = models.PositiveIntegerField(
        default=300,
        validators=[MaxValueValidator(86_400)],
        help_text=_("A node without work for so long is given back."),
    )
    wait_s = models.PositiveIntegerField(
        default=86_400,
        validators=[MinValueValidator(60), MaxValueValidator(30 * 86_400)],
        help_text=_("A request that the engine has not granted after so long is withdrawn."),
    )
    enabled = models.BooleanField(default=True, help_text=_("If not, its nodes drain, and none is asked for."))
    tag = models.CharField(max_length=12, default=make_tag, unique=True, editable=False)
    condition = models.CharField(max_length=400, blank=True, default="", editable=False)
    said = models.JSONField(default=list, editable=False)
    condition_at = models.DateTimeField(null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    retry_at = models.DateTimeField(null=True, editable=False)
    looked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(min_nodes__lte=F("max_nodes")), name="provider_nodes_in_range"),
            models.CheckConstraint(condition=Q(max_nodes__lte=MOST_NODES), name="provider_nodes_bounded"),
            models.CheckConstraint(condition=Q(hours__gt=0, hours__lte=MOST_HOURS), name="provider_hours_in_range"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuses settings and shapes that its kind does not know, a new name, and another kind while it has pilots."""
        wrong = self.faults()
        before = NodeProvider.objects.filter(pk=self.pk).values("name", "kind").first() if self.pk else None
        if before is not None and before["name"] != self.name:
            wrong["name"] = _now("A provider keeps its name: its nodes are called after it.")
        is_other = before is not None and before["kind"] != self.kind
        if is_other and self.pilots.exclude(state=Pilot.PilotState.GONE).exists():
            wrong["kind"] = _now("It has pilots of its present kind: disable it, and wait until they are gone.")
        if self.min_nodes is not None and self.max_nodes is not None and self.min_nodes > self.max_nodes:
            wrong["min_nodes"] = _now("must be at most max_nodes, which is %(most)s") % {"most": self.max_nodes}
        if wrong:
            raise ValidationError(wrong)

    def faults(self) -> dict[str, Any]:
        """Return what this release and installation refuse of its kind, settings and shapes, by field."""
        if self.kind not in kinds.allowed():
            said = _now("There is no kind %(kind)s; there are %(known)s.")
            return {"kind": said % {"kind": self.kind[:20], "known": ", ".join(kinds.allowed()) or "-"}}
        kind, wrong = kinds.module(self.kind), {}
        try:
            typed.checked("settings", self.settings, kind.SETTINGS, kind.NEEDED)
        except ValidationError as error:
            wrong["settings"] = error
        try:
            shapes.valid(self.shapes, kind.SHAPE)
        except ValidationError as error:
            wrong["shapes"] = error
        return wrong


class Pilot(models.Model):
    """One allocation of a foreign engine that runs an agent of this cluster.

    The row is committed before the engine is asked, and its ``label`` tells the engine's entry of it. Its state is
    written by :mod:`controlplane.providers.service` only, by conditional updates. ``node`` is the node that its agent
    is; a provider's nodes are used again by later pilots, and have one pilot at a time. ``why`` is a code that tells
    why it is leaving or gone.
    """

    class PilotState(models.TextChoices):
        ASKED = "ASKED", _("asked for")
        QUEUED = "QUEUED", _("in the queue")
        UP = "UP", _("up")
        LEAVING = "LEAVING", _("leaving")
        GONE = "GONE", _("gone")

    class PilotEnd(models.TextChoices):
        IDLE = "idle", _("there was no work for it")
        ENDS = "ends", _("its time is over")
        ENDED = "ended", _("the engine ended it")
        NEVER_CAME = "never_came", _("the engine does not know it")
        REFUSED = "refused", _("the engine refused it")
        WAITED = "waited", _("the engine did not grant it in time")
        VANISHED = "vanished", _("the engine does not know it any more")
        DISABLED = "disabled", _("the provider was disabled")
        SURPLUS = "surplus", _("there are more than may be")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    provider = models.ForeignKey(NodeProvider, on_delete=models.CASCADE, related_name="pilots", db_constraint=False)
    shape = models.CharField(max_length=63)
    hours = models.FloatField()
    label = models.CharField(max_length=60, unique=True)
    handle = models.CharField(max_length=200, blank=True, default="")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="pilots", db_constraint=False)
    window = models.ForeignKey(
        MaintenanceWindow, null=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False
    )
    state = models.CharField(max_length=8, choices=PilotState.choices, default=PilotState.ASKED)
    why = models.CharField(max_length=12, choices=PilotEnd.choices, blank=True, default="")
    created_at = models.DateTimeField()
    up_at = models.DateTimeField(null=True)
    joined_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    leaving_at = models.DateTimeField(null=True)
    gone_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["ASKED", "QUEUED", "UP", "LEAVING", "GONE"]), name="pilot_state_known"
            ),
            models.UniqueConstraint(fields=["node"], condition=~Q(state="GONE"), name="pilot_once_per_node"),
        ]
        indexes = [models.Index(fields=["provider"], name="pilot_open", condition=~Q(state="GONE"))]

    def __str__(self) -> str:
        return self.label
