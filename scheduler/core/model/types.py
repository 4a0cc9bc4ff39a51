"""The engine's input and output: a Snapshot goes in, a Plan comes out. All of it is frozen data.

Times are seconds since the epoch as floats and end in ``_at``; spans end in ``_s``; shares are integers in thousandths
of a device (``_milli``); memory is in bytes. Nothing here imports Django, or reads a clock or a random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Final

from scheduler.core.model.basis import Basis
from scheduler.core.model.clauses import Said
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.lifecycle import Cause, Health, NodeState, State
from scheduler.core.model.partitions import Partition

# A stage is taken to run as many times faster as it has times the nodes, to this power, until it is measured: twice the
# nodes make a data-parallel training about 1.8 times as fast.
SCALING: Final = 0.85
# How long a stage takes to start again, until it has been seen to.
RESTART_S: Final = 5.0


class Mode(StrEnum):
    """How a device is given out: whole, or as shares that run at once (their sum is at most its capacity)."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable unit. A CPU device is one NUMA node with cores x 1000 milli; any other has 1000 milli.

    ``fenced_for`` names the stage for which an eviction freed this device; no other stage may take it until
    ``fenced_until`` (:mod:`scheduler.core.model.fences`). A ``warned`` device works but is degraded: pending row
    remaps, rising corrected errors, a link below its width. ``partitions`` names the table in ``partitions.toml`` by
    which it may be partitioned; such a device is also assigned whole to stages that ask for no partition, unless
    ``whole`` is false. If ``made`` is given it is partitioned already: only those partitions are assigned.

    Devices of a node with the same ``group`` are joined by links that are faster than the path through the host
    (NVLink, HCCS, XGMI, or a PCIe switch); ``None`` if the node reports no such link. ``busy`` is its recent mean
    utilisation, from 0 to 1 in steps of an eighth; ``None`` if not measured. ``sharing`` is how memory shares are
    enforced: *hard* (by hardware), *soft* (by its agent), *none*; empty if unknown.
    """

    id: str
    node: str
    kind: str
    vendor: str
    model: str
    index: int
    memory_bytes: int
    capacity_milli: int = 1000
    mode: Mode = Mode.SHARED
    health: Health = Health.OK
    numa: int | None = None
    features: Mapping[str, float] = field(default_factory=dict)
    fenced_for: str | None = None
    warned: bool = False
    partitions: str = ""
    made: tuple[Partition, ...] | None = None
    whole: bool = True
    fenced_until: float | None = None
    group: int | None = None
    busy: float | None = None
    sharing: str = ""

    @property
    def ails(self) -> bool:
        """Whether running stages should move away from it: it is degraded, or unhealthy and accepts no new stage."""
        return self.warned or self.health is Health.UNHEALTHY


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with an agent. ``pools`` are the names of the pools it belongs to.

    ``cached`` are the digests that it has already (bundles, data, checkpoints), sorted. ``labels`` name its domains:
    ``rack``, ``switch``, ``nvlink-domain``, ``site``. A node that is not ``awake`` sleeps to save power, and one
    without a container engine does not ``runs_images``. ``fetch_gbps`` is the recent bandwidth of fetched inputs, in
    Gbit/s; ``None`` before any. ``links`` are measured bandwidths from other nodes, by id, in Gbit/s; few of all pairs
    were measured. ``load`` is its work in relation to its capacity: 0 idle, 1 full, above 1 tasks queue
    for cores or are stalled on disks or memory; in steps of an eighth. ``mounts`` are the folders of which stages may
    mount what is in them.
    """

    id: str
    name: str
    state: NodeState
    pools: tuple[str, ...]
    devices: tuple[Device, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    cached: tuple[str, ...] = ()
    awake: bool = True
    runs_images: bool = True
    fetch_gbps: float | None = None
    load: float = 0.0
    mounts: tuple[str, ...] = ()
    links: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one node must give: ``count`` devices that match, ``milli`` and ``memory_bytes`` of each.

    Empty ``vendor`` or ``model`` match any; ``model`` matches by case-insensitive substring ("H100" fits "NVIDIA H100
    80GB HBM3"). ``partition`` asks for a part of each device by the name of its profile ("3g.40gb"), or for the
    *smallest* that has ``milli`` and ``memory_bytes``. ``sharing`` is what must hold all who share the device to their
    memory: *soft* or *hard*; empty for whatever it is.
    """

    kind: str
    count: int = 1
    milli: int = 1000
    memory_bytes: int = 0
    vendor: str = ""
    model: str = ""
    partition: str = ""
    sharing: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run a stage: the asks of each node, all of which the same node must meet. ``index`` is its place in
    the job file; ``image`` names the container image that it runs in, where it does."""

    index: int
    asks: tuple[Ask, ...]
    image: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The run time of a stage on a device of speed 1: half of such stages end by ``p50_s``, nine of ten by ``p90_s``.

    If ``declared`` it was not measured but stated by a person, and then refers to the fastest device that is open to
    the stage, not to one of speed 1. ``reliability`` is the share of recent such stages that ended by their P90;
    ``None`` without any. If not ``known`` it is used for planning but not shown. ``basis`` is a :class:`Basis`, or the
    English sentence in records from before there were codes; ``runs`` is the number of runs that it rests on, if any.
    """

    p50_s: float
    p90_s: float
    basis: str = Basis.LIMITS
    declared: bool = False
    reliability: float | None = None
    known: bool = True
    runs: int = 0

    def without(self, done_s: float) -> Estimate:
        """Return what is left once so many seconds of the work are done and kept."""
        if done_s <= 0.0:
            return self
        return replace(self, p50_s=max(self.p50_s - done_s, 1.0), p90_s=max(self.p90_s - done_s, 1.0))


@dataclass(frozen=True, slots=True)
class Grant:
    """A share of one device, or a partition of it."""

    device: str
    milli: int
    memory_bytes: int
    part: Partition | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a stage runs: one tuple of grants per rank, in rank order; each rank is one node."""

    alternative: int
    nodes: tuple[str, ...]
    grants: tuple[tuple[Grant, ...], ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """A timetable entry that was shown to people. ``late_at`` is the end of the promised range. ``yielded_to`` names
    the project that an earlier one was given to, because it was owed more."""

    stage: str
    start_at: float
    end_at: float
    late_at: float
    placement: Placement
    made_at: float
    yielded_to: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A waiting stage. ``unmet`` names its dependencies that have not completed; ``blocked_by`` the one among them that
    can never complete. ``pinned`` restricts it to those nodes (where its data are), ``avoid`` excludes nodes, by name
    or by a label (``rack=r2``); of each group of ``only`` its nodes must have one: a name, a label, a label of any
    value (``ib=*``) or any label of that value (``*=a100``). ``retry_at`` is the end of a backoff. ``usage`` of fair
    share is kept per project.

    ``bundle_gone`` tells that its code is no longer stored, ``image_missing`` why its image cannot be fetched, if
    known; ``secret_missing`` names the secrets that its project does not have; ``pool_refused`` tells that its project
    may not use its pool any more. ``awaits`` is a reason that the engine is only told: its job depends on others, or
    its array has a limit. ``inputs`` are the digests of its inputs, ``input_bytes`` their sizes as far as known;
    ``site`` is where its data must stay. ``mounts`` are folders that its nodes must have for it. ``within`` is the kind
    of domain (``rack``, ``nvlink-domain``) that all its ranks should share, and must share if ``within_required``.

    ``attained_device_s`` is the service of its earlier attempts (devices times seconds), ``received_s`` how long it ran
    on each model. ``truth_s`` is its true remaining work on a device of speed 1, which only a simulated world knows,
    for policies that are marked as oracles. ``stopped_at`` is the end of its last attempt.

    An elastic stage runs on ``nodes`` to ``most_nodes`` nodes; 0 there means that it has one size only. Its estimate is
    for the least; on ``n`` times the nodes it is ``n ** scaling`` times as fast.
    """

    id: str
    job: str
    number: int
    name: str
    project: str
    user: str
    pool: str
    kind: str
    priority: int
    submitted_at: float
    eligible_at: float
    alternatives: tuple[Alternative, ...]
    estimate: Estimate
    state: State = State.PENDING
    nodes: int = 1
    priority_class: str = "medium"
    precision: str = ""
    preemptible: bool = True
    time_limit_s: float | None = None
    begin_at: float | None = None
    retry_at: float | None = None
    attempts: int = 0
    max_attempts: int = 1
    unmet: tuple[str, ...] = ()
    blocked_by: str | None = None
    pinned: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    only: tuple[tuple[str, ...], ...] = ()
    held_by: str = ""
    promise: Promise | None = None
    inputs: tuple[str, ...] = ()
    site: str = ""
    mounts: tuple[str, ...] = ()
    within: str = ""
    within_required: bool = False
    bundle_gone: bool = False
    image_missing: str = ""
    secret_missing: str = ""
    pool_refused: bool = False
    attained_device_s: float = 0.0
    received_s: tuple[tuple[str, float], ...] = ()
    truth_s: float | None = None
    deadline_at: float | None = None
    stopped_at: float | None = None
    most_nodes: int = 0
    scaling: float = SCALING
    input_bytes: tuple[tuple[str, int], ...] = ()
    awaits: Reason | None = None
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A stage that holds devices: starting, running, stopping or suspended.

    ``progress`` is the share of its work (0.05 to 1) that was done at ``progress_at``, if it reports it.
    ``evicted_for`` names the stage for which it was asked to stop, if for another. ``min_runtime_s`` protects it from
    eviction for that long after its start. ``restart_s`` is how long it will take from its next start until it runs.

    ``eligible_at`` is since when it could have run.

    For profiles that rotate: ``submitted_at`` and ``alternatives`` are those of the stage (without alternatives it
    cannot be placed again), ``attained_device_s``, ``received_s`` and ``truth_s`` are as for a waiting stage, as of
    ``counted_at`` (the start if that is ``None``). A stage that ``saves_on_stop`` loses no work when it is asked to
    stop. ``in_circle`` tells that it was stopped for others that were stopped for it.

    An elastic stage may continue with ``least_nodes`` to ``most_nodes`` nodes (0: it may not), all among those to which
    it is ``pinned`` if any are named. ``avoid``, ``only``, ``site`` and ``within`` apply as when it waited. While it
    stops in order to shrink, its first ``keeps`` ranks stay its own. Its estimate is for its present size.
    ``gave_back_at`` are the times at which it shrank for others.
    """

    id: str
    job: str
    number: int
    name: str
    project: str
    user: str
    pool: str
    kind: str
    priority: int
    state: State
    attempt: str
    placement: Placement
    started_at: float
    estimate: Estimate
    priority_class: str = "medium"
    precision: str = ""
    preemptible: bool = True
    time_limit_s: float | None = None
    checkpoint_at: float | None = None
    checkpoints: bool = False
    progress: float | None = None
    progress_at: float | None = None
    evicted_for: str | None = None
    stop_by_at: float | None = None
    preemptions: int = 0
    min_runtime_s: float = 0.0
    restart_s: float = RESTART_S
    grace_s: float = 30.0
    submitted_at: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    attained_device_s: float = 0.0
    received_s: tuple[tuple[str, float], ...] = ()
    truth_s: float | None = None
    deadline_at: float | None = None
    counted_at: float | None = None
    saves_on_stop: bool = False
    in_circle: bool = False
    least_nodes: int = 0
    most_nodes: int = 0
    pinned: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    only: tuple[tuple[str, ...], ...] = ()
    site: str = ""
    mounts: tuple[str, ...] = ()
    within: str = ""
    within_required: bool = False
    keeps: int = 0
    scaling: float = SCALING
    gave_back_at: tuple[float, ...] = ()
    eligible_at: float | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """A project's quota of devices of a kind, and of a ``model`` if one is named (part of its name, in any case), in
    thousandths of a device; ``None`` is unlimited. A ``normalised`` one counts devices in A100 equivalents
    (:mod:`scheduler.core.resources.charges`). Unused quota may be borrowed by other projects of the same cohort."""

    project: str
    kind: str
    nominal_milli: int | None = None
    borrowing_limit_milli: int | None = None
    lending_limit_milli: int | None = None
    cohort: str = ""
    model: str = ""
    normalised: bool = False

    def covers(self, kind: str, model: str) -> bool:
        """Whether devices of this sort count."""
        return kind == self.kind and self.model.lower() in model.lower()


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one user may run at once, in a ``pool`` and a ``project``; empty stands for any of them.

    ``user`` is whom it limits; empty stands for every user, each for themselves. ``running`` counts stages,
    ``devices_milli`` thousandths of devices other than CPUs; ``None`` is unlimited. ``number`` names the limit.
    """

    number: int
    pool: str = ""
    project: str = ""
    user: str = ""
    running: int | None = None
    devices_milli: int | None = None

    def covers(self, stage: Stage | Running) -> bool:
        """Whether the stage counts against this limit."""
        return self.pool in ("", stage.pool) and self.project in ("", stage.project) and self.user in ("", stage.user)


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of device-hours that a project has used up: until ``until_at`` nothing of it starts that asks for such
    devices. An empty ``kind`` stands for every device other than CPUs; a ``normalised`` one counts A100 equivalents."""

    number: int
    project: str
    kind: str
    hours: float
    used_hours: float
    until_at: float
    normalised: bool = False

    def covers(self, stage: Stage, alternative: Alternative) -> bool:
        """Whether the stage would use such devices in this way to run it."""
        kinds = {ask.kind for ask in alternative.asks}
        return stage.project == self.project and (
            self.kind in kinds if self.kind else any(is_accelerator(kind) for kind in kinds)
        )


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant. ``used_device_s`` is its decayed use, for fair share against ``weight``."""

    id: str
    weight: float = 1.0
    used_device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Typical:
    """A usual request: ``count`` devices of ``kind``, ``milli`` of each, and ``cores_milli`` of CPU; without devices it
    asks for CPU only. ``share`` (0 to 1) is how often it comes among all requests."""

    kind: str
    count: int
    milli: int
    cores_milli: int
    share: float


@dataclass(frozen=True, slots=True)
class Pool:
    """A named set of nodes with its own profile. A stopped pool starts nothing. ``typical`` is its typical workload,
    for policies against fragmentation; it rarely changes. No stage may have a longer limit than ``max_limit_s``, and no
    user more than ``user_limit`` running stages at once."""

    name: str
    profile: str = "hybrid"
    stopped_by: str = ""
    default_limit_s: float = 86_400.0
    typical: tuple[Typical, ...] = ()
    max_limit_s: float | None = None
    user_limit: int | None = None


@dataclass(frozen=True, slots=True)
class CalendarEntry:
    """A time in which these nodes are kept: nothing starts there that would not be done before ``start_at``.

    With ``reserved``, the name of a reservation of ``project``, stages of that reservation are excepted, and start
    nowhere else and at no other time. Without it nobody is: the nodes are out of service.
    """

    id: str
    nodes: tuple[str, ...]
    start_at: float
    end_at: float
    why: str = ""
    reserved: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True)
class Turnout:
    """The outcomes of similar announced starts. Eight of ten waits were between ``low`` and ``high`` times the expected
    one; ``None`` with too few observations. ``held`` of the ``seen`` ranges that were shown contained the start."""

    low: float | None = None
    high: float | None = None
    held: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one cycle may know. ``speeds`` maps (stage kind, device model) to a measured relative speed.

    ``lateness`` is how many seconds nine of ten recent promised starts came late at most, by pool and breadth
    (:mod:`scheduler.core.world.lateness`); without it a promise rests on the durations of the stages before it alone.
    ``announced`` has the outcomes of announced starts (:mod:`scheduler.core.explain.announced`).

    ``given_back`` are the nodes on which something was released since a cycle last looked for earlier times, and
    ``stirred`` the stages with a reservation that something kept from starting then and not now, or the other way;
    without a previous cycle, or if unknown (``None``), any node may be one.
    """

    nodes: tuple[Node, ...]
    waiting: tuple[Stage, ...] = ()
    running: tuple[Running, ...] = ()
    projects: tuple[Project, ...] = ()
    quotas: tuple[Quota, ...] = ()
    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
    pools: tuple[Pool, ...] = (Pool("default"),)
    speeds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    maintenance: tuple[CalendarEntry, ...] = ()
    lateness: Mapping[tuple[str, str], float] = field(default_factory=dict)
    announced: Mapping[tuple[str, str], Turnout] = field(default_factory=dict)
    given_back: tuple[str, ...] | None = None
    unsettled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """The changes between two snapshots of one store, by id: the stage or node as it is now, ``None`` if it is gone.
    ``serial`` counts the snapshots of a store; these are the changes since the previous one."""

    serial: int
    waiting: Mapping[str, Stage | None] = field(default_factory=dict)
    running: Mapping[str, Running | None] = field(default_factory=dict)
    nodes: Mapping[str, Node | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """One cause of waiting. ``code`` is from the catalogue in ``scheduler.core.model.reasons``; ``params`` carry the
    numbers that its sentence shows and are plain JSON."""

    code: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected start of a stage, as a range, with its basis (a :class:`Basis`). ``at`` is when it starts if
    everything goes as predicted, and ``since`` when that was computed. If the range is too wide to be useful it is not
    ``known``, and not shown. ``held`` of the ``seen`` earlier ranges of this pool contained the start."""

    low_at: float
    high_at: float
    basis: str
    at: float = 0.0
    since: float = 0.0
    known: bool = True
    held: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Begin ``stage`` now at ``placement``; ``why`` says in one sentence why there, ``said`` in clauses. ``lasts`` is
    how long it will probably run in this very place."""

    stage: str
    placement: Placement
    why: str
    lasts: Estimate = Estimate(1.0, 1.0)
    said: Said = ()


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop ``victim`` (a running stage) for ``stage``; prices are in weighted device-seconds. ``devices`` are kept for
    ``stage`` when it has given them back."""

    cause: ClassVar[Cause] = Cause.PREEMPTED
    why: ClassVar[str] = ""
    said: ClassVar[Said] = ()

    victim: str
    stage: str
    price: float
    gain: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resize:
    """Stop a running stage that has ``was`` nodes and continue it with ``size``, for ``stage`` (for its own sake if
    that is empty). ``why`` is the reason as text, ``said`` in clauses; ``price`` and ``gain`` are in weighted
    device-seconds. ``devices`` are those that it releases and that are fenced for ``stage``."""

    cause: ClassVar[Cause] = Cause.RESIZE

    victim: str
    was: int
    size: int
    why: str
    price: float
    gain: float
    stage: str = ""
    devices: tuple[str, ...] = ()
    said: Said = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Stop a running stage, for its own sake, and continue it at ``placement`` or, if that is taken by then, wherever
    it fits. ``why`` is the reason as text, ``said`` in clauses; ``price`` and ``gain`` are in weighted
    device-seconds."""

    cause: ClassVar[Cause] = Cause.MOVE
    stage: ClassVar[str] = ""
    devices: ClassVar[tuple[str, ...]] = ()

    victim: str
    placement: Placement
    why: str
    price: float
    gain: float
    said: Said = ()


# All stages to stop: for whom, at what price, and which devices are fenced.
Stop = Preempt | Resize | Move


@dataclass(frozen=True, slots=True)
class Wait:
    """``stage`` does not start now. ``reasons`` are in order of precedence: the first is the primary one.

    ``funnel`` is how many nodes were left after each filter. ``planned`` is its timetable entry, where it has one.
    """

    stage: str
    reasons: tuple[Reason, ...]
    expected: Expected | None = None
    planned: Promise | None = None
    funnel: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one cycle: each waiting stage is in it exactly once, in ``starts`` or in ``waits``.

    ``replanned`` tells that the timetable was recomputed, and why, ``replanned_said`` in clauses. ``wake_at`` is the
    next time at which the same world may give another plan: a reservation falls due, a backoff ends, or a prediction is
    overrun.

    ``swaps`` are starts on devices that the victims of this very plan still hold; their stages are among ``waits`` or
    among the victims too. A store that stops stages at once may start them immediately; others ignore them: a later
    plan starts those stages when the devices are free.
    """

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    waits: tuple[Wait, ...] = ()
    replanned: str = ""
    wake_at: float | None = None
    swaps: tuple[Start, ...] = ()
    resizes: tuple[Resize, ...] = ()
    moves: tuple[Move, ...] = ()
    replanned_said: Said = ()

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Return all stages to stop, whether or not they continue elsewhere at once."""
        return (*self.preempts, *self.resizes, *self.moves)
