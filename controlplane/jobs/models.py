"""Models of jobs: jobs, stages, attempts, parts, claims, and their append-only facts.

Only ``jobs.service`` writes states. Constraints and triggers (see the migrations) refuse two live attempts of a stage,
a change of a final state, claims beyond a device's capacity, and any change of a stored event.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField, IntegerRangeField
from django.core.files.storage import storages
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q, Sum
from django.db.models.functions import Now
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils.translation import gettext_lazy as _

from agents.protocol import Phase
from controlplane import storage
from controlplane.accounts.models import Project, Sealed, User
from controlplane.background import BackgroundPhase
from controlplane.fleet.models import Device, Node
from controlplane.jobs.written import WrittenField
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import ACTIVE, FINAL, WAITING, Cause, State

STATES = [(state, state) for state in State]
CAUSES = [(cause, cause) for cause in Cause]


class Array(models.Model):
    """Many jobs from one job file, its elements.

    Its number is one of the numbers of jobs. ``asked`` is ``array`` of the job file, which the files of its elements
    leave out, and ``count`` the number of elements that were submitted. At most ``max_parallel`` elements run at once.
    ``halving`` is the rule by which they are stopped early (see ``jobs.halving``). It has no state of its own: those of
    its elements are counted.
    """

    number = models.BigIntegerField(primary_key=True, editable=False)
    name = models.CharField(max_length=100)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="arrays")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="arrays")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="arrays")
    count = models.PositiveIntegerField()
    max_parallel = models.PositiveIntegerField(null=True)
    halving = models.JSONField(null=True)
    asked = WrittenField()
    submitted_at = models.DateTimeField()

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"


class Job(models.Model):
    """What a user asked for: one or more stages.

    ``spec`` is the submitted job file in its original order, with values of secrets masked; ``number`` is unique in the
    cluster. An element of an array has its ``array`` and ``array_index``, and in a sweep its ``parameters``.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.BigIntegerField(unique=True, editable=False)
    name = models.CharField(max_length=100)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="jobs")
    priority_class = models.CharField(max_length=40)
    priority = models.IntegerField()
    state = models.CharField(max_length=10, choices=STATES, default=State.PENDING)
    cause = models.CharField(max_length=20, blank=True)
    spec = WrittenField()
    labels = models.JSONField(default=dict)
    bundle = models.CharField(max_length=64, blank=True)
    source = models.ForeignKey("GitSource", null=True, db_index=False, on_delete=models.SET_NULL, related_name="jobs")
    array = models.ForeignKey(Array, null=True, db_index=False, on_delete=models.PROTECT, related_name="jobs")
    array_index = models.PositiveIntegerField(null=True)
    parameters = WrittenField(null=True)
    submitted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    event_seq = models.PositiveIntegerField(default=0)
    events_gone = models.PositiveIntegerField(
        db_default=0, help_text=_("How many of its first events went because they were old.")
    )
    version = models.PositiveBigIntegerField(default=1)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=list(State)), name="job_state_known"),
            models.UniqueConstraint(
                fields=["array", "array_index"], name="element_once", condition=Q(array__isnull=False)
            ),
        ]
        indexes = [
            models.Index(fields=["state", "-number"]),
            models.Index(fields=["project", "-number"]),
            models.Index(fields=["-submitted_at"]),
            models.Index(fields=["project", "ended_at"], name="job_ended", condition=Q(ended_at__isnull=False)),
            models.Index(
                fields=["project", "ended_at"],
                name="job_with_events",
                condition=Q(ended_at__isnull=False, events_gone=0),
            ),
            models.Index(fields=["bundle"], name="job_of_bundle", condition=~Q(bundle="")),
            models.Index(fields=["source"], name="job_of_source", condition=Q(source__isnull=False)),
            models.Index(fields=["array", "state"], name="job_of_array", condition=Q(array__isnull=False)),
            models.Index(fields=["-number"], name="job_ordinary", condition=Q(array__isnull=True)),
            models.Index(
                fields=["user", "name", "number"], name="job_open_namesake", condition=~Q(state__in=sorted(FINAL))
            ),
        ]

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"


class JobSecrets(Sealed):
    """The encrypted values of the secret variables of a job file.

    They are a JSON list, and the requests of the job's stages refer to its indexes (see ``jobs.sealed``). The row is
    deleted with the job, or as soon as no stage of it can start any more.
    """

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="secrets")

    class Meta:
        verbose_name_plural = "job secrets"

    def context(self) -> str:
        return f"job {self.job_id}"


class Dependency(models.Model):
    """An earlier job or array, called ``name``, for whose end a job waits; of a singleton all earlier namesakes.

    ``verdict`` is empty until the end of the other is known here: then the dependency is met, or it never will be.
    """

    class When(models.TextChoices):
        AFTEROK = "afterok"
        AFTERANY = "afterany"
        AFTERNOTOK = "afternotok"
        AFTERCORR = "aftercorr"
        SINGLETON = "singleton"

    class Verdict(models.TextChoices):
        MET = "met"
        NEVER = "never"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    when = models.CharField(max_length=10, choices=When)
    name = models.CharField(max_length=30, blank=True)
    on_job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="dependents")
    on_array = models.ForeignKey(Array, null=True, on_delete=models.SET_NULL, related_name="dependents")
    verdict = models.CharField(max_length=5, blank=True, choices=Verdict)
    decided_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        verbose_name_plural = "dependencies"
        constraints = [
            models.CheckConstraint(
                condition=Q(when__in=["afterok", "afterany", "afternotok", "aftercorr", "singleton"]),
                name="dependency_when_known",
            ),
            models.CheckConstraint(
                condition=~Q(verdict="") | Q(when="singleton") | Q(on_job__isnull=False) | Q(on_array__isnull=False),
                name="dependency_open_has_other",
            ),
        ]
        indexes = [models.Index(fields=["id"], name="dependency_open", condition=Q(verdict=""))]

    def __str__(self) -> str:
        return f"{self.name or 'namesakes'} ({self.when})"


class Stage(models.Model):
    """The unit that is scheduled.

    ``request`` is the resolved demand (see ``jobs.spec``): alternatives with their asks, commands and environment.
    ``reasons``, ``funnel``, ``expected``, ``planned`` and ``lasts`` are the results of the newest cycle that evaluated
    the stage, at ``evaluated_at``. ``announced`` is the first range of start times shown for it, ``first_promise`` the
    start and the end of the range that it was promised first, and ``of`` the class of stages for that promise. ``said``
    is ``detail`` in clauses (see ``controlplane.clauses``); ``state_at`` is when it entered its state.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="stages")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=20)
    needs = models.ManyToManyField("self", symmetrical=False, related_name="needed_by")
    state = models.CharField(max_length=10, choices=STATES, default=State.PENDING)
    state_at = models.DateTimeField(null=True)
    cause = models.CharField(max_length=20, choices=CAUSES, blank=True)
    detail = models.TextField(blank=True)
    said = models.JSONField(default=list)
    exit_code = models.IntegerField(null=True)
    request = models.JSONField()
    max_attempts = models.PositiveSmallIntegerField(default=1, validators=[MinValueValidator(1)])
    attempt_count = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    preemptions = models.PositiveIntegerField(default=0)
    held_by = models.CharField(max_length=150, blank=True)
    begin_at = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    eligible_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    reasons = models.JSONField(default=list)
    funnel = models.JSONField(default=list)
    expected = models.JSONField(null=True)
    announced = models.JSONField(null=True)
    first_promise = models.JSONField(null=True)
    lasts = models.JSONField(null=True)
    planned = models.JSONField(null=True)
    promise = models.JSONField(null=True)
    evaluated_at = models.DateTimeField(null=True)
    # Seconds that it waited by its first reason, counted by a trigger up to ``waited_at`` (null: it does not wait).
    waited = models.JSONField(default=dict, db_default={}, editable=False)
    waited_at = models.DateTimeField(null=True, editable=False)
    progress = models.JSONField(null=True)
    values = models.JSONField(default=dict)
    version = models.PositiveBigIntegerField(default=1)

    class Meta:
        ordering = ["index"]
        constraints = [
            models.UniqueConstraint(fields=["job", "name"], name="stage_name_once_per_job"),
            models.CheckConstraint(condition=Q(state__in=list(State)), name="stage_state_known"),
        ]
        indexes = [
            models.Index(fields=["id"], name="stage_open", condition=~Q(state__in=sorted(FINAL))),
            models.Index(fields=["id"], name="stage_waiting", condition=Q(state__in=sorted(WAITING))),
            models.Index(fields=["-ended_at"], name="stage_ended", condition=Q(state="COMPLETED")),
            models.Index(fields=["-started_at"], name="stage_active", condition=Q(state__in=sorted(ACTIVE))),
            models.Index(fields=["id"], name="stage_planned", condition=Q(planned__isnull=False)),
            models.Index(fields=["state_at"], name="stage_held", condition=Q(state="HELD")),
            models.Index(fields=["-started_at"], name="stage_announced", condition=Q(announced__isnull=False)),
            models.Index(
                fields=["id"], name="stage_reads", condition=Q(state__in=sorted(WAITING), request__has_key="inputs")
            ),
            models.Index(
                fields=["-ended_at"],
                name="stage_promotes",
                condition=Q(state="COMPLETED", request__has_key="promote"),
            ),
            models.Index(
                fields=["id"],
                name="stage_open_ports",
                condition=~Q(state__in=sorted(FINAL)) & Q(request__has_key="ports"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job}/{self.name}"


class Attempt(models.Model):
    """One try at running a stage on chosen devices.

    ``epoch`` is a fencing token: a write with an older one has no effect. ``said`` has the clauses (see
    ``controlplane.clauses``) of ``why_here``, ``stop_note`` and ``detail`` under these names, and under ``saves`` the
    reason for the interval between its checkpoints.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField(default=1)
    alternative = models.PositiveSmallIntegerField(default=0)
    why_here = models.TextField(blank=True)
    said = models.JSONField(default=dict)
    estimate = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    stop_why = models.CharField(max_length=20, choices=CAUSES, blank=True)
    stop_for = models.UUIDField(null=True, help_text=_("The stage for which this attempt was told to stop."))
    stop_devices = ArrayField(
        models.UUIDField(),
        null=True,
        help_text=_("The devices that it frees for that stage; empty for all that it holds."),
    )
    stop_at = models.DateTimeField(null=True)
    stop_note = models.CharField(max_length=300, blank=True)
    stop_grace_s = models.FloatField(null=True, help_text=_("How long it has to end, where that is less than usual."))
    resized_to = models.PositiveSmallIntegerField(
        null=True, help_text=_("With how many nodes its stage goes on, where it was told to stop for that.")
    )
    contact_lost_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    cause = models.CharField(max_length=20, choices=CAUSES, blank=True)
    detail = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    price = models.FloatField(null=True, help_text=_("Device-seconds lost when it was evicted."))
    checkpoint_every_s = models.FloatField(null=True, help_text=_("How often it was told to save, in seconds."))
    save_rev = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    save_for = models.DateTimeField(
        null=True, editable=False, help_text=_("The planned stop ahead of which it was last asked to save.")
    )
    progress_share = models.FloatField(
        null=True, help_text=_("The share of its work that was done when that last moved its predicted end.")
    )
    progress_at = models.DateTimeField(null=True, help_text=_("When that share was reported."))

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["stage", "number"], name="attempt_number_once"),
            models.UniqueConstraint(fields=["stage"], condition=Q(ended_at=None), name="one_live_attempt_per_stage"),
        ]
        indexes = [
            models.Index(fields=["-ended_at"], name="attempt_out_of_memory", condition=Q(cause=Cause.OUT_OF_MEMORY)),
            models.Index(fields=["-ended_at"], name="attempt_priced", condition=Q(price__gt=0)),
            models.Index(fields=["-ended_at"], name="attempt_ran", condition=Q(started_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.stage} attempt {self.number}"


class Curves(models.Model):
    """Metrics of an attempt by step: ``kept`` is thinned, ``tail`` is as reported (see ``jobs.curves``).

    ``marks`` are the newest pairs of a time, in seconds since the epoch, and the step that was reported then.
    """

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="curves")
    tail = models.JSONField(default=list)
    kept = models.JSONField(default=dict)
    marks = models.JSONField(default=list, db_default=[])

    class Meta:
        verbose_name_plural = "curves"


class Part(models.Model):
    """The piece of an attempt that runs on one node; the unit that an agent starts and reports.

    ``share`` is what its newest revision, ``spec_rev``, gives the running processes (see ``agents.protocol.Share``);
    ``seen_rev`` is the revision that the agent has applied, and ``notes`` say what of it could not be applied.
    ``signal`` is the signal sent last and ``signal_rev`` the number of those that were sent (see ``jobs.signals``).
    ``substate_said`` and ``notes_said`` are the clauses of ``substate`` and ``notes`` (see ``controlplane.clauses``).
    ``listens`` are those of its stage's ports on which it listened when its agent last reported, and ``visited_at`` is
    when somebody last used one of them in a browser.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="parts")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="parts")
    rank = models.PositiveIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=1)
    phase = models.PositiveSmallIntegerField(default=Phase.ASSIGNED)
    substate = models.CharField(max_length=60, blank=True)
    substate_said = models.JSONField(default=list, db_default=[])
    signal = models.CharField(max_length=10, default="", db_default="")
    signal_rev = models.PositiveIntegerField(default=0, db_default=0)
    spec_rev = models.PositiveIntegerField(default=1)
    # What it holds of its node as a whole until it ends: disk space, and MB/s of disk and network.
    disk_bytes = models.BigIntegerField(default=0, db_default=0)
    disk_mbps = models.PositiveIntegerField(default=0, db_default=0)
    network_mbps = models.PositiveIntegerField(default=0, db_default=0)
    share = models.JSONField(null=True)
    seen_rev = models.PositiveIntegerField(default=1)
    notes = models.JSONField(default=list)
    notes_said = models.JSONField(default=list, db_default=[])
    listens = models.JSONField(default=list, db_default=[])
    visited_at = models.DateTimeField(null=True)
    pid = models.BigIntegerField(null=True)
    pid_start = models.BigIntegerField(null=True)
    exit = models.JSONField(null=True)
    forgotten = models.BooleanField(default=False, help_text=_("True once the agent has dropped it."))
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["rank"]
        indexes = [models.Index(fields=["node"], name="part_of_node", condition=Q(forgotten=False))]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "rank"], name="part_rank_once"),
            models.CheckConstraint(condition=Q(disk_bytes__gte=0), name="part_disk_not_negative"),
        ]


class Claim(models.Model):
    """An attempt's hold on a share of a device, or on a partition of it.

    Claims are closed, never deleted: usage is the sum of their intervals. ``partition`` is the profile of the
    partition, ``slots`` the range of the device that it covers; a trigger refuses open claims that overlap.
    ``partition_uuid`` is the partition's own uuid, empty if the agent creates the partition.
    """

    part = models.ForeignKey(Part, on_delete=models.CASCADE, related_name="claims")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="claims")
    milli = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    memory_bytes = models.BigIntegerField(default=0)
    partition = models.CharField(max_length=40, blank=True)
    slots = IntegerRangeField(null=True)
    partition_uuid = models.CharField(max_length=120, blank=True)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["part", "device"], name="claim_once_per_part_and_device"),
            models.CheckConstraint(condition=Q(milli__gt=0) & Q(memory_bytes__gte=0), name="claim_not_empty"),
            models.CheckConstraint(
                condition=Q(partition="", slots=None, partition_uuid="")
                | (~Q(partition="") & Q(slots__isnull=False, slots__isempty=False)),
                name="claim_of_a_partition_has_slots",
            ),
            models.UniqueConstraint(
                fields=["device", "partition_uuid"],
                condition=Q(closed_at=None) & ~Q(partition_uuid=""),
                name="partition_held_once",
            ),
        ]
        indexes = [
            models.Index(fields=["device", "opened_at"]),
            models.Index(fields=["device"], name="claim_open", condition=Q(closed_at=None)),
            models.Index(fields=["opened_at"], name="claim_opened_at"),
            models.Index(fields=["closed_at"], name="claim_closed_at"),
        ]


class Checkpoint(models.Model):
    """A resumable point that a stage confirmed."""

    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    path = models.CharField(max_length=1000)
    at = models.DateTimeField()
    took_s = models.FloatField(null=True, help_text=_("How long saving it held up the stage, where that was told."))

    class Meta:
        ordering = ["-at"]
        constraints = [models.UniqueConstraint(fields=["attempt", "step", "path"], name="checkpoint_once")]
        indexes = [models.Index(fields=["-at"], name="checkpoint_timed", condition=Q(took_s__isnull=False))]


class RungResult(models.Model):
    """What a stage of a sweep's element reported when it reached a rung of successive halving, and what followed.

    ``array`` and ``stage_index`` say with which others it is compared. ``value`` is null for what is no finite number.
    ``verdict`` is empty until it was judged: as one of ``among`` that had reached the rung by then, of which ``cutoff``
    was needed to go on.
    """

    class Judgement(models.TextChoices):
        GOES_ON = "goes_on"
        STOPPED = "stopped"

    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="rung_results")
    array = models.ForeignKey(Array, db_index=False, on_delete=models.CASCADE, related_name="rung_results")
    stage_index = models.PositiveSmallIntegerField()
    rung = models.PositiveSmallIntegerField()
    step = models.BigIntegerField()
    value = models.FloatField(null=True)
    at = models.DateTimeField()
    verdict = models.CharField(max_length=7, blank=True, choices=Judgement)
    among = models.PositiveIntegerField(null=True)
    cutoff = models.FloatField(null=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["stage", "rung"], name="rung_reached_once"),
            models.CheckConstraint(condition=Q(verdict__in=["", "goes_on", "stopped"]), name="rung_verdict_known"),
        ]
        indexes = [
            models.Index(fields=["id"], name="rung_unjudged", condition=Q(verdict="")),
            models.Index(fields=["array", "stage_index", "rung", "value"], name="rung_ranked"),
        ]

    def __str__(self) -> str:
        return f"{self.stage} rung {self.rung}"


class Output(models.Model):
    """An output of a completed stage, stored by digest; for a folder this is the digest of its manifest."""

    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="outputs")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="outputs")
    name = models.CharField(max_length=63)
    digest = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    files = models.PositiveIntegerField(default=1)
    at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["attempt", "name"], name="output_once_per_attempt")]


class Event(models.Model):
    """An append-only fact about a job; ``seq`` has no gaps within the job. ``said`` is its text in clauses."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    # The job's project, copied by a trigger, so that events of few projects are found by an index.
    project = models.ForeignKey(
        Project, null=True, editable=False, db_index=False, on_delete=models.PROTECT, related_name="events"
    )
    seq = models.PositiveIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    stage = models.CharField(max_length=63, blank=True)
    attempt = models.PositiveIntegerField(null=True)
    actor = models.CharField(max_length=150)
    text = models.TextField()
    said = models.JSONField(default=list)
    params = models.JSONField(default=dict)

    class Meta:
        ordering = ["seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="event_seq_once_per_job")]
        indexes = [models.Index(fields=["project", "-id"], name="event_of_project")]


class Session(models.Model):
    """An interactive session inside a running part, with its command (empty for a shell). Events record its course.

    ``token`` is the digest of the access token that opened it, ``channel`` the channel of the caller's socket.
    ``seen_at`` is renewed while that socket is open: a row that is not renewed belongs to a server that has gone.

    With a ``port`` it has no command: it lets its caller connect to that port of the part. Each connection is a session
    ``of`` it, of which nothing is recorded and whose row goes with it.

    ``is_web`` is a port that its user opened in a browser, on an origin of its own (see ``jobs.web_sessions``). No
    socket holds it: its connections renew it. It was opened by an access token, or in a browser that is signed in as
    ``login``. ``ticket`` is the digest of what the browser exchanges for its cookie once, until ``ticket_until``.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    part = models.ForeignKey(Part, on_delete=models.CASCADE, related_name="sessions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sessions")
    token = models.CharField(max_length=64)
    command = models.JSONField(default=list)
    tty = models.BooleanField(default=False)
    stdin = models.BooleanField(default=False)
    rows = models.PositiveIntegerField(default=24)
    columns = models.PositiveIntegerField(default=80)
    term = models.CharField(max_length=64, blank=True)
    port = models.PositiveIntegerField(null=True)
    of = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="connections")
    channel = models.CharField(max_length=200)
    is_web = models.BooleanField(default=False, db_default=False)
    login = models.CharField(max_length=40, blank=True, db_default="")
    ticket = models.CharField(max_length=64, blank=True, db_default="")
    ticket_until = models.DateTimeField(null=True)
    opened_at = models.DateTimeField()
    joined_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["seen_at"], name="session_open", condition=Q(ended_at=None))]


class StageTrace(models.Model):
    """A profile of what a part does, taken for somebody while it runs (see ``jobs.traces``).

    ``detail`` is why it failed, and ``said`` the same in clauses. The file lies in the storage ``traces`` once the
    state is READY, and goes with the row.
    """

    class State(models.TextChoices):
        ASKED = "ASKED"
        RUNNING = "RUNNING"
        READY = "READY"
        FAILED = "FAILED"

    OPEN = (State.ASKED, State.RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    part = models.ForeignKey(Part, on_delete=models.CASCADE, related_name="traces")
    tool = models.CharField(max_length=20)
    seconds = models.PositiveSmallIntegerField(help_text=_("For how long it is taken."))
    state = models.CharField(max_length=7, choices=State, default=State.ASKED)
    detail = models.CharField(max_length=500, blank=True)
    said = models.JSONField(default=list)
    size_bytes = models.BigIntegerField(default=0)
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="traces")
    asked_at = models.DateTimeField()
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-asked_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["ASKED", "RUNNING", "READY", "FAILED"]), name="trace_state_known"
            ),
            models.UniqueConstraint(
                fields=["part"], condition=Q(state__in=["ASKED", "RUNNING"]), name="one_open_trace_per_part"
            ),
        ]
        indexes = [models.Index(fields=["ended_at"], name="trace_ended", condition=Q(ended_at__isnull=False))]

    def __str__(self) -> str:
        return f"{self.tool} of {self.part_id}"

    @property
    def place(self) -> str:
        """The name of its file in the storage."""
        return f"{self.id.hex[:2]}/{self.id}"


@receiver(post_delete, sender=StageTrace)
def forget_trace(instance: StageTrace, **_: Any) -> None:
    """Remove the file of a trace, whoever deleted the row."""
    storage.forget("traces", instance.place)


class LogSpan(models.Model):
    """A run of bytes of one log stream of a part, without bytes of the other stream in between (see ``jobs.logs``).

    ``start`` is the number of bytes of both streams before it, ``offset`` the number of bytes of its own stream.
    """

    part = models.ForeignKey(Part, on_delete=models.CASCADE, related_name="log_spans", db_index=False)
    stream = models.CharField(max_length=3)
    start = models.BigIntegerField()
    offset = models.BigIntegerField()
    size = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["part", "start"], name="log_start_once"),
            models.UniqueConstraint(fields=["part", "stream", "offset"], name="log_offset_of_stream_once"),
            models.CheckConstraint(condition=Q(stream__in=["out", "err"]), name="log_span_stream_known"),
        ]


class PartLog(models.Model):
    """The total length of a part's log, both streams together, and the time of the last append, to the hour.

    ``gone_at`` is when its bytes were removed because they were too old or their project had too many. So many bytes of
    each stream as ``archived_out`` and ``archived_err`` lie in the archive (see ``jobs.log_archive``), what came after
    them in files; ``archived_at`` is set while nothing does. ``archive_tried_at`` is when a move began last.
    """

    part = models.OneToOneField(Part, primary_key=True, on_delete=models.CASCADE, related_name="log")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, db_index=False, related_name="+")
    size_bytes = models.BigIntegerField()
    written_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True)
    archived_out = models.BigIntegerField(db_default=0)
    archived_err = models.BigIntegerField(db_default=0)
    archived_at = models.DateTimeField(null=True)
    archive_tried_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["project", "written_at"], name="log_of_project", condition=Q(gone_at__isnull=True)),
            models.Index(
                fields=["written_at"],
                name="log_not_archived",
                condition=Q(gone_at__isnull=True, archived_at__isnull=True),
            ),
        ]


class Decision(models.Model):
    """An append-only record of a scheduling cycle whose outcome was new.

    A stage was started, stopped or skipped, or waits for another reason or until another time. The cycle's inputs and
    its whole plan are in the decision log, under this id. ``waits`` counts the primary reasons; ``head`` is the first
    waiting stage of the queue; ``code`` is the version of the engine.
    """

    at = models.DateTimeField(db_index=True)
    profile = models.CharField(max_length=100)
    code = models.CharField(max_length=40, blank=True)
    duration_ms = models.FloatField()
    waiting = models.PositiveIntegerField()
    started = models.JSONField(default=list)
    evicted = models.JSONField(default=list)
    skipped = models.JSONField(default=list)
    waits = models.JSONField(default=dict)
    head = models.JSONField(default=dict)
    replanned = models.CharField(max_length=300, blank=True)
    replanned_said = models.JSONField(default=list, db_default=[])


class Shadow(models.Model):
    """What another profile would have decided in a cycle: a shadow evaluation, never applied.

    ``by_pool`` has, by the pool's name, the number of differences and the profile that was evaluated there.
    """

    decision = models.OneToOneField(Decision, on_delete=models.CASCADE, related_name="shadow")
    profile = models.CharField(max_length=100)
    duration_ms = models.FloatField()
    differs = models.BooleanField()
    difference = models.JSONField(default=dict)
    by_pool = models.JSONField(default=dict)


class Change(models.Model):
    """A change of a stage or node that the scheduler reads, written by triggers.

    A row with neither a stage nor a node says that everything may have changed. ``xact`` is the transaction (see
    :mod:`controlplane.scheduling.change_feed`).
    """

    stage_id = models.UUIDField(null=True)
    node_id = models.UUIDField(null=True)
    xact = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["xact"], name="change_xact")]


class Bundle(models.Model):
    """A stage's code and files, uploaded once and stored in the storage ``bundles`` under their digest."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    size_bytes = models.BigIntegerField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(
        db_default=Now(), help_text=_("When it was uploaded or asked for last, or a job began to need it, to an hour.")
    )

    @staticmethod
    def bytes_of(user: User) -> int:
        """Return how many bytes of bundles this user has here."""
        total: int | None = Bundle.objects.filter(user=user).aggregate(sum=Sum("size_bytes"))["sum"]
        return total or 0

    @staticmethod
    def place(sha256: str) -> str:
        """Return the name of the bundle with this digest in the storage."""
        return f"{sha256[:2]}/{sha256}"

    @staticmethod
    def is_stored(sha256: str) -> bool:
        """Whether the bundle with this digest is stored; marks it as needed now."""
        return Bundle.use([sha256]) and storages["bundles"].exists(Bundle.place(sha256))

    @staticmethod
    def use(digests: Collection[str]) -> bool:
        """Mark these bundles as needed now; return False if one of them is not stored."""
        Bundle.objects.filter(sha256__in=digests, used_at__lt=Now() - timedelta(hours=1)).update(used_at=Now())
        return Bundle.objects.filter(sha256__in=digests).count() == len(digests)


class GitSource(models.Model):
    """The git repository and revision from which the jobs of one submission have their code.

    A worker fetches it once: then ``commit`` is the full id of the commit, ``bundle`` its files, and all attempts of
    these jobs use them. ``fault`` is why it was not fetched at the last try, as a code; ``ended_at`` is when it was
    fetched or given up. Until ``retry_at`` it is left alone, or a worker has it. ``secret`` names a secret of the
    project, which is sent as the password of ``username``.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    url = models.CharField(max_length=500)
    rev = models.CharField(max_length=200)
    secret = models.CharField(max_length=128, blank=True)
    username = models.CharField(max_length=128)
    commit = models.CharField(max_length=64, blank=True)
    bundle = models.CharField(max_length=64, blank=True)
    fault = models.CharField(max_length=40, blank=True)
    failures = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    retry_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["created_at"], name="source_to_fetch", condition=Q(ended_at=None)),
            models.Index(fields=["project", "commit"], name="source_of_commit", condition=~Q(commit="")),
        ]

    def __str__(self) -> str:
        return f"{self.url} at {self.rev}"


class Operation(models.Model):
    """An action on the jobs that match ``filter`` and have a number up to ``newest``, from the newest to the oldest.

    It is done as ``user``, with the rights of the moment. ``reached`` is the job reached last: it is written in the
    transaction of each action, so that none is done twice. ``matched`` is how many matched at the start. ``refusals``
    has the first ones. ``worked_at`` is when a worker took it last, ``leased_until`` until when it has it. ``via`` and
    ``credential`` are how it was asked for, for the audit log. :mod:`controlplane.bulk.service` alone writes it.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="operations")
    action = models.CharField(max_length=20)
    patch = models.JSONField(null=True)
    filter = models.JSONField()
    reason = models.CharField(max_length=500, blank=True)
    language = models.CharField(max_length=20)
    via = models.CharField(max_length=20)
    credential = models.CharField(max_length=120, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    newest = models.BigIntegerField()
    reached = models.BigIntegerField(null=True)
    matched = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    refusals = models.JSONField(default=list)
    phase = models.CharField(max_length=12, choices=BackgroundPhase, default=BackgroundPhase.WAITING)
    fault = models.CharField(max_length=200, blank=True)
    worked_at = models.DateTimeField(null=True)
    leased_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["id"], name="operation_open", condition=Q(ended_at=None))]

    def __str__(self) -> str:
        return f"{self.action} ({self.pk})"
