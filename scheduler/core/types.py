"""What the engine sees and what it answers: a Snapshot goes in, a Plan comes out. All of it is frozen data.

Times are seconds since the epoch as floats and end in ``_at``; spans end in ``_s``; shares are integers in thousandths
of a device (``_milli``); memory is in bytes. Nothing here knows Django, a clock or a die.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.lifecycle import Health, NodeState, State


class Mode(StrEnum):
    """How a device is given out: whole, or as shares that run at once (their sum is at most its capacity)."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable unit. A CPU device is one NUMA node with cores x 1000 milli; any other has 1000 milli.

    ``fenced_for`` names the stage for which an eviction freed this device; nobody else may take it.
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


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with an agent. ``pools`` are the names of the pools it belongs to."""

    id: str
    name: str
    state: NodeState
    pools: tuple[str, ...]
    devices: tuple[Device, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one node must give: ``count`` devices that match, ``milli`` and ``memory_bytes`` of each.

    Empty ``vendor`` or ``model`` match any; ``model`` matches by case-insensitive substring ("H100" fits "NVIDIA H100
    80GB HBM3").
    """

    kind: str
    count: int = 1
    milli: int = 1000
    memory_bytes: int = 0
    vendor: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run a stage: the asks of each node, all of which the same node must meet. ``index`` is its place in
    the job file."""

    index: int
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a stage runs on a device of speed 1: half of such stages end by ``p50_s``, nine of ten by ``p90_s``.

    Where it is ``declared`` nobody measured anything: a person said it, and it then holds for the fastest device that
    is open to the stage, not for one of speed 1.
    """

    p50_s: float
    p90_s: float
    basis: str = "declared limits"
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A share of one device."""

    device: str
    milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a stage runs: one tuple of grants per rank, in rank order; each rank is one node."""

    alternative: int
    nodes: tuple[str, ...]
    grants: tuple[tuple[Grant, ...], ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """A timetable entry that was shown to people. ``late_at`` is the end of the promised range."""

    stage: str
    start_at: float
    end_at: float
    late_at: float
    placement: Placement
    made_at: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that waits. ``unmet`` names the stages it needs that have not completed; ``blocked_by`` the one among
    them that can never complete. ``pinned`` restricts it to those nodes (its data lie there), ``avoid`` excludes nodes.
    ``retry_at`` is the end of a backoff. ``usage`` of fair share lives on the project."""

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
    held_by: str = ""
    promise: Promise | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A stage that holds devices: starting, running, stopping or suspended.

    ``progress`` is the share of its work that is done, where it reports it. ``evicted_for`` names the stage for which
    it was told to stop. ``min_runtime_s`` protects it from eviction for that long after its start.
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
    evicted_for: str | None = None
    stop_by_at: float | None = None
    preemptions: int = 0
    min_runtime_s: float = 0.0
    restart_s: float = 5.0
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Quota:
    """A project's right to devices of a kind, in milli-devices; ``None`` means without limit. What the projects of one
    cohort do not use can be borrowed by the others of it."""

    project: str
    kind: str
    nominal_milli: int | None = None
    borrowing_limit_milli: int | None = None
    lending_limit_milli: int | None = None
    cohort: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant. ``used_device_s`` is its decayed use, for fair share against ``weight``."""

    id: str
    weight: float = 1.0
    used_device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """A named set of nodes with its own profile. A stopped pool starts nothing."""

    name: str
    profile: str = "hybrid"
    stopped_by: str = ""
    default_limit_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one cycle may know. ``speeds`` maps (stage kind, device model) to a measured relative speed."""

    nodes: tuple[Node, ...]
    waiting: tuple[Stage, ...] = ()
    running: tuple[Running, ...] = ()
    projects: tuple[Project, ...] = ()
    quotas: tuple[Quota, ...] = ()
    pools: tuple[Pool, ...] = (Pool("default"),)
    speeds: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """One cause of waiting. ``code`` is from the catalogue in ``scheduler.core.reasons``; ``params`` carry the numbers
    that its sentence shows and are plain JSON."""

    code: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """When a stage will probably start, as a range, and what that rests on."""

    low_at: float
    high_at: float
    basis: str


@dataclass(frozen=True, slots=True)
class Start:
    """Begin ``stage`` now at ``placement``; ``why`` says in one sentence why there. ``lasts`` is how long it will
    probably run in this very place."""

    stage: str
    placement: Placement
    why: str
    lasts: Estimate = Estimate(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop ``victim`` (a running stage) for ``stage``; prices are in weighted device-seconds."""

    victim: str
    stage: str
    price: float
    gain: float
    devices: tuple[str, ...]


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

    ``replanned`` tells that the timetable was recomputed, and why. ``wake_at`` is the next time at which the same world
    may give another plan: an entry falls due, a backoff ends, a prediction is overrun.
    """

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    waits: tuple[Wait, ...] = ()
    replanned: str = ""
    wake_at: float | None = None
