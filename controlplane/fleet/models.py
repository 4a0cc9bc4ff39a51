"""Nodes, their devices, and measurements of them."""

from __future__ import annotations

import uuid
from typing import Final

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Func, Q
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project, User, slug
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import Health, NodeState
from scheduler.core.model.types import Mode


class DrainMode(models.TextChoices):
    """What a drain does with what runs on its nodes: it lets it finish, asks it to save and queues it again, or stops
    it at once and queues it again."""

    FINISH = "finish", _("let it finish")
    SAVE = "save", _("let it save, and queue it again")
    NOW = "now", _("stop it at once, and queue it again")


# A node that stands for another cluster is called after it.
SITE_NODE: Final = "site-"


class Node(models.Model):
    """A machine that runs an agent. Its state is written by ``fleet.service`` only.

    ``generation`` rises in the transaction that changes the node's orders. ``incarnation``, ``machine_id``, ``boot_id``
    and ``start_seq`` are those of the agent process that speaks for it (:mod:`controlplane.fleet.identity`): the first
    report of the incarnation arrived at ``incarnation_at``, that of the boot at ``booted_at``. ``load``, ``disk_bytes``
    and ``fetch_gbps`` are written by :mod:`controlplane.fleet.loads` only.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[slug])
    sort_key = models.GeneratedField(
        expression=Func(F("name"), function="natural_key"),
        output_field=models.TextField(db_collation="C"),
        db_persist=True,
        unique=True,
    )
    pools = models.ManyToManyField(Pool, related_name="nodes", blank=True)
    state = models.CharField(max_length=10, choices=[(s, s) for s in NodeState], default=NodeState.JOINING)
    state_at = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=300, blank=True)
    reason_said = models.JSONField(default=list, db_default=[], editable=False)
    # The reason of a drain during which the node was lost: it drains again once it reports.
    drain_interrupted = models.JSONField(null=True, editable=False)
    # When what still runs there is stopped, and how; null and empty while the node may finish or is not drained.
    drain_stop_at = models.DateTimeField(null=True, editable=False)
    drain_stops = models.CharField(
        max_length=6, choices=DrainMode.choices, blank=True, db_default="", default="", editable=False
    )
    credential_digest = models.CharField(max_length=64, unique=True, editable=False)
    # New secrets that were sent to the agent but not used yet; the first to be used replaces the old one.
    offered_digests = models.JSONField(default=list, editable=False)
    credential_at = models.DateTimeField(null=True, editable=False)
    labels = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False, editable=False)
    # It stands for another cluster (controlplane.sites): its parts run there, and its silence proves no end.
    is_site = models.BooleanField(default=False, db_default=False, editable=False)
    address = models.CharField(max_length=255, blank=True, editable=False)
    agent_version = models.CharField(max_length=40, blank=True, editable=False)
    runs_as = models.CharField(max_length=200, blank=True, editable=False)
    isolation = models.CharField(max_length=40, blank=True, editable=False)
    container_engine = models.CharField(
        max_length=80,
        null=True,
        editable=False,
        help_text=_("Empty where none answers; null where the agent does not look for one."),
    )
    mounts = models.JSONField(
        default=list,
        db_default=[],
        editable=False,
        help_text=_("The folders of which stages may mount what is in them, as its operator declared them."),
    )
    executor = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("The foreign engine whose jobs its stages are; empty where they run on the node itself."),
    )
    # Sentences about what that engine cannot give, and the same in clauses (see ``controlplane.clauses``).
    lacks = models.JSONField(default=list, db_default=[], editable=False)
    lacks_said = models.JSONField(default=list, db_default=[], editable=False)
    hostname = models.CharField(max_length=255, blank=True, editable=False)
    os = models.CharField(max_length=200, blank=True, editable=False)
    arch = models.CharField(max_length=40, blank=True, editable=False)
    memory_bytes = models.BigIntegerField(default=0, editable=False)
    disk_total_bytes = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text=_("The size of the disk on which its stages work.")
    )
    disk_bytes = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text=_("How much of that disk stages may ask for in all.")
    )
    network_mbps = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text=_("MB/s of its fastest network interface; 0 if unknown.")
    )
    inventory_hash = models.CharField(max_length=64, blank=True, editable=False)
    conditions = models.JSONField(default=dict, editable=False)
    survivors = models.JSONField(default=dict, editable=False)
    incarnation = models.CharField(max_length=64, blank=True, default="", editable=False)
    incarnation_at = models.DateTimeField(null=True, editable=False)
    machine_id = models.CharField(max_length=64, blank=True, default="", editable=False)
    boot_id = models.CharField(max_length=64, blank=True, editable=False)
    booted_at = models.DateTimeField(null=True, editable=False)
    start_seq = models.BigIntegerField(default=0, editable=False)
    seq = models.BigIntegerField(default=0, editable=False)
    generation = models.BigIntegerField(default=0, editable=False)
    seen_generation = models.BigIntegerField(default=0, editable=False)
    last_report_at = models.DateTimeField(null=True, editable=False)
    good_reports = models.PositiveSmallIntegerField(default=0, editable=False)
    load = models.FloatField(default=0.0, editable=False, help_text=_("0 idle, 1 full, more: work queues or stalls."))
    fetch_gbps = models.FloatField(null=True, editable=False, help_text=_("Gbit/s, measured; null before any was."))
    # From which node it is to measure the bandwidth, and since when.
    measures_from = models.ForeignKey("self", null=True, editable=False, on_delete=models.SET_NULL, related_name="+")
    measures_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["sort_key"]
        permissions = [
            ("operate_node", "Can drain, resume and give up nodes, renew credentials, decide about parts set aside"),
            ("end_survivor", "Can stop and forget survivors"),
            ("release_fuse", "Can release the mass-loss fuse"),
        ]
        constraints = [models.CheckConstraint(condition=Q(state__in=list(NodeState)), name="node_state_known")]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One schedulable unit on a node.

    ``claimed_milli`` and ``claimed_memory_bytes`` are updated by a trigger on claims, and a check constraint on this
    row refuses more than the device has, so the database itself never oversells. Devices of a node with the same
    ``link_group`` are joined by ``links`` that are faster than the path through the host
    (:mod:`controlplane.fleet.links`).
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
    health_said = models.JSONField(default=list, db_default=[], editable=False)
    present = models.BooleanField(default=True, help_text=_("False once the node no longer reports it."))
    features = models.JSONField(default=dict)
    attributes = models.JSONField(default=dict)
    links = models.JSONField(default=list)
    link_group = models.PositiveSmallIntegerField(null=True, editable=False)
    busy = models.FloatField(null=True, editable=False, help_text=_("Mean utilisation of late, 0 to 1; null: untold."))
    division = models.JSONField(null=True, help_text=_("How it can be divided and is; null where it cannot."))
    sharing = models.CharField(
        max_length=8,
        blank=True,
        editable=False,
        help_text=_("What holds who shares it to their memory: hard, soft or none; empty where that was not told."),
    )
    claimed_milli = models.PositiveIntegerField(default=0, editable=False)
    claimed_memory_bytes = models.BigIntegerField(default=0, editable=False)
    fenced_for = models.UUIDField(null=True, editable=False)
    fenced_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["node__name", "kind", "index"]
        permissions = [("operate_device", "Can cordon and uncordon devices")]
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
    """A secret with which new nodes may join, a limited number of times until it expires.

    It admits new nodes to ``pool``, or again the one ``node`` that it was made for: one of the two is set.
    """

    digest = models.CharField(max_length=64, primary_key=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, null=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, null=True)
    uses_left = models.PositiveIntegerField(default=1)
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(pool__isnull=False, node=None) | Q(pool=None, node__isnull=False), name="join_token_of_one"
            )
        ]


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
    """Use of the processes of a part at a time: cores and resident bytes, and the energy of its devices until then, in
    joules by kind of device. Partitioned by day like the above."""

    pk = models.CompositePrimaryKey("part_id", "at")
    part_id = models.UUIDField()
    at = models.DateTimeField()
    cpu = models.FloatField(null=True)
    rss_bytes = models.BigIntegerField(null=True)
    energy_j = models.JSONField(null=True)

    class Meta:
        managed = False
        db_table = "fleet_part_sample"


class Host(models.Model):
    """A node's host beside its devices: its inventory and its newest measurement.

    ``interfaces``, ``disks`` and ``file_systems`` are as in :mod:`agents.protocol`. ``counters`` are bytes since the
    host started as of ``at``, ``per_s`` their rates since the previous measurement; both by kind (``received``,
    ``sent``, ``read``, ``written``) and then by name. ``free_bytes`` is by mount. ``means`` are decayed means: of
    stalls (``queue``, ``io``, ``memory``) and of the bandwidth of fetched inputs (``fetch``, in Gbit/s); ``disk_room``
    is the newest measurement of the disk space for stages in bytes. ``batch_of``
    and ``batch_seq`` are incarnation and number of the newest batch of measurements, so that each is stored once.
    """

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="host")
    interfaces = models.JSONField(default=list, editable=False)
    disks = models.JSONField(default=list, editable=False)
    file_systems = models.JSONField(default=list, editable=False)
    at = models.DateTimeField(null=True, editable=False)
    counters = models.JSONField(default=dict, editable=False)
    per_s = models.JSONField(default=dict, editable=False)
    free_bytes = models.JSONField(default=dict, editable=False)
    pressure = models.JSONField(default=dict, editable=False)
    means = models.JSONField(default=dict, editable=False)
    weighed_at = models.DateTimeField(null=True, editable=False)
    batch_of = models.CharField(max_length=64, blank=True, default="", editable=False)
    batch_seq = models.BigIntegerField(default=0, editable=False)


class NodeLink(models.Model):
    """The measured bandwidth from one node to another. Few of all pairs are measured: those between which inputs were
    sent, the newest of each node. Written by :mod:`controlplane.fleet.node_links` only.

    ``mean_gbps`` is the mean of its transfers, larger ones counting more, and ``gbps`` the same in coarse steps, as the
    scheduler sees it.
    """

    source = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="links_to")
    target = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="links_from")
    gbps = models.FloatField()
    mean_gbps = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["target", "source"], name="node_link_once"),
            models.CheckConstraint(condition=Q(gbps__gt=0, mean_gbps__gt=0), name="node_link_carries"),
            models.CheckConstraint(condition=~Q(source=F("target")), name="node_link_between_two"),
        ]

    def __str__(self) -> str:
        return f"{self.source.name} to {self.target.name}"


class CalendarEntry(models.Model):
    """A time in which nodes are kept: for nobody in a maintenance, for who holds it in a reservation.

    Without ``cron`` it is one time, from ``starts_at`` until ``ends_at``. With it, one begins at each time of the line
    in ``time_zone`` between the two, and lasts ``lasts_s``; see :mod:`controlplane.fleet.calendar`. Entries are
    cancelled, never deleted, so that the history stays visible.
    """

    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    cron = models.CharField(max_length=100, blank=True, default="", db_default="")
    time_zone = models.CharField(max_length=63, blank=True, default="UTC", db_default="UTC")
    lasts_s = models.PositiveIntegerField(null=True, blank=True)
    reason = models.CharField(max_length=300)
    made_by = models.CharField(max_length=150, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    cancelled_by = models.CharField(max_length=150, blank=True, editable=False)
    cancelled_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True


class MaintenanceWindow(CalendarEntry):
    """A period in which a node, or all nodes of a pool, are out of service. Nothing that would run into it starts."""

    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.CASCADE, related_name="windows")
    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="windows")

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="window_ends_after_it_starts"),
            models.CheckConstraint(
                condition=Q(node=None, pool__isnull=False) | Q(node__isnull=False, pool=None), name="window_of_one"
            ),
        ]
        indexes = [models.Index(fields=["ends_at"], name="window_ahead", condition=Q(cancelled_at=None))]

    def __str__(self) -> str:
        return f"{self.of}, {self.starts_at:%Y-%m-%d %H:%M} UTC"

    @property
    def of(self) -> str:
        """What the window is for, as text."""
        return f"node {self.node.name}" if self.node else f"pool {self.pool.name if self.pool else '?'}"


class Reservation(CalendarEntry):
    """A period in which whole nodes are for jobs of one project that name the reservation, or of some of its users."""

    name = models.CharField(max_length=63, unique=True, validators=[slug])
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reservations", db_constraint=False)
    users = models.ManyToManyField(User, related_name="+", blank=True, db_constraint=False)
    nodes = models.ManyToManyField(Node, related_name="reservations", db_constraint=False)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="reservation_ends_after_it_starts")
        ]
        indexes = [models.Index(fields=["ends_at"], name="reservation_ahead", condition=Q(cancelled_at=None))]

    def __str__(self) -> str:
        return self.name


class Heartbeat(models.Model):
    """When each periodic task last ran; claimed by a conditional update, so duplicate beats have no effect."""

    name = models.CharField(max_length=60, primary_key=True)
    at = models.DateTimeField()


class TaskRecord(models.Model):
    """The record of a Celery task by its name: when it last succeeded and how long that took, how often and when it
    failed, and the last error. Written by :mod:`controlplane.workers.task_records`."""

    name = models.CharField(max_length=60, primary_key=True)
    done_at = models.DateTimeField(null=True)
    took_s = models.FloatField(default=0)
    failures = models.PositiveIntegerField(default=0)
    failed_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=500, default="")

    class Meta:
        db_table = "fleet_task_record"


class Alarm(models.Model):
    """Something that was left out because its stored or reported data are invalid; shown until they are corrected.

    ``kind`` is one of :data:`controlplane.fleet.alarms.KINDS`, ``subject`` the name of the object; ``said`` are the
    clauses of ``says`` (see :mod:`controlplane.clauses`). ``times`` is how often it was found since ``since``.
    """

    kind = models.CharField(max_length=20)
    subject = models.CharField(max_length=130)
    says = models.CharField(max_length=500)
    said = models.JSONField(default=list, db_default=[])
    since = models.DateTimeField()
    at = models.DateTimeField()
    times = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["since", "id"]
        constraints = [models.UniqueConstraint(fields=["kind", "subject"], name="alarm_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.says}"


class Kept(models.Model):
    """The digests that a node caches, most recently used first, and where other nodes may fetch them.

    ``key`` signs tickets for that node only, which replaces it every few minutes.
    """

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="kept")
    digests = models.JSONField(default=list, editable=False)
    url = models.CharField(max_length=300, blank=True, editable=False)
    key = models.CharField(max_length=64, blank=True, editable=False)

    class Meta:
        verbose_name_plural = _("kept by nodes")
        indexes = [GinIndex(fields=["digests"], name="kept_digests", opclasses=["jsonb_path_ops"])]


class Fetch(models.Model):
    """Which node downloads a source that no node has yet. A hint: after ``until`` another one is appointed."""

    digest = models.CharField(max_length=64, primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE)
    until = models.DateTimeField()

    class Meta:
        verbose_name_plural = _("fetches")
