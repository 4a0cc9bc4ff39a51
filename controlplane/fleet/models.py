"""What there is: nodes, their devices, and what was measured on them."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from controlplane.access.models import slug
from controlplane.pools.models import Pool
from scheduler.core.lifecycle import Health, NodeState
from scheduler.core.types import Mode


class Node(models.Model):
    """A machine that runs an agent. Its state is written by ``fleet.service`` only.

    ``generation`` rises in the transaction that changes what the node is to run; ``boot_id`` and ``start_seq`` fence an
    older process of the same node.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[slug])
    pools = models.ManyToManyField(Pool, related_name="nodes", blank=True)
    state = models.CharField(max_length=10, choices=[(s, s) for s in NodeState], default=NodeState.JOINING)
    state_at = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=300, blank=True)
    credential_digest = models.CharField(max_length=64, unique=True, editable=False)
    labels = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False, editable=False)
    address = models.CharField(max_length=255, blank=True, editable=False)
    agent_version = models.CharField(max_length=40, blank=True, editable=False)
    runs_as = models.CharField(max_length=200, blank=True, editable=False)
    isolation = models.CharField(max_length=40, blank=True, editable=False)
    hostname = models.CharField(max_length=255, blank=True, editable=False)
    os = models.CharField(max_length=200, blank=True, editable=False)
    arch = models.CharField(max_length=40, blank=True, editable=False)
    memory_bytes = models.BigIntegerField(default=0, editable=False)
    inventory_hash = models.CharField(max_length=64, blank=True, editable=False)
    conditions = models.JSONField(default=dict, editable=False)
    boot_id = models.CharField(max_length=64, blank=True, editable=False)
    start_seq = models.BigIntegerField(default=0, editable=False)
    seq = models.BigIntegerField(default=0, editable=False)
    generation = models.BigIntegerField(default=0, editable=False)
    seen_generation = models.BigIntegerField(default=0, editable=False)
    last_report_at = models.DateTimeField(null=True, editable=False)
    good_reports = models.PositiveSmallIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(condition=Q(state__in=list(NodeState)), name="node_state_known")]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One schedulable unit on a node.

    ``claimed_milli`` and ``claimed_memory_bytes`` are kept by a trigger on claims, and a check on this row refuses more
    than the device has: the database itself never oversells.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    uuid = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=20)
    vendor = models.CharField(max_length=60, blank=True)
    model = models.CharField(max_length=120, blank=True)
    index = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField(default=0)
    capacity_milli = models.PositiveIntegerField(default=1000)
    mode = models.CharField(max_length=10, choices=[(m, m) for m in Mode], default=Mode.SHARED)
    numa = models.PositiveSmallIntegerField(null=True)
    simulated = models.BooleanField(default=False)
    health = models.CharField(max_length=12, choices=[(h, h) for h in Health], default=Health.OK)
    health_reason = models.CharField(max_length=300, blank=True)
    present = models.BooleanField(default=True, help_text=_("False once the node no longer reports it."))
    features = models.JSONField(default=dict)
    attributes = models.JSONField(default=dict)
    links = models.JSONField(default=list)
    claimed_milli = models.PositiveIntegerField(default=0, editable=False)
    claimed_memory_bytes = models.BigIntegerField(default=0, editable=False)
    fenced_for = models.UUIDField(null=True, editable=False)
    fenced_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["node__name", "kind", "index"]
        constraints = [
            models.CheckConstraint(condition=Q(claimed_milli__lte=F("capacity_milli")), name="device_not_oversold"),
            models.CheckConstraint(
                condition=Q(claimed_memory_bytes__gte=0, claimed_memory_bytes__lte=F("memory_bytes")),
                name="device_memory_not_oversold",
            ),
            models.CheckConstraint(condition=Q(health__in=list(Health)), name="device_health_known"),
        ]

    def __str__(self) -> str:
        return f"{self.node.name}:{self.kind}{self.index}"


class JoinToken(models.Model):
    """A secret with which new nodes may join, a limited number of times within its life."""

    digest = models.CharField(max_length=64, primary_key=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE)
    uses_left = models.PositiveIntegerField(default=1)
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)


class DeviceSample(models.Model):
    """One measurement of a device. The table is partitioned by day; old days are dropped whole."""

    pk = models.CompositePrimaryKey("device_id", "at")
    device = models.ForeignKey(Device, on_delete=models.DO_NOTHING, db_constraint=False, related_name="samples")
    at = models.DateTimeField()
    utilisation = models.FloatField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)
    power_w = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)

    class Meta:
        managed = False
        db_table = "fleet_device_sample"


class PartSample(models.Model):
    """What the processes of a part used at a moment: cores and resident bytes. Partitioned by day like the above."""

    pk = models.CompositePrimaryKey("part_id", "at")
    part_id = models.UUIDField()
    at = models.DateTimeField()
    cpu = models.FloatField(null=True)
    rss_bytes = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = "fleet_part_sample"


class Heartbeat(models.Model):
    """When each periodic duty was last done; claimed by a conditional update, so a doubled beat does no harm.

    ``epoch`` is the fencing token of the scheduling loop.
    """

    name = models.CharField(max_length=60, primary_key=True)
    at = models.DateTimeField()
    epoch = models.BigIntegerField(default=0)
