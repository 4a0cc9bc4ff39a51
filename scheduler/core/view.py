"""What one cycle knows and has decided so far; the engine writes it, policies only read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.core import match, speed
from scheduler.core.ledger import Ledger
from scheduler.core.lifecycle import NodeState, State
from scheduler.core.match import Candidate
from scheduler.core.ports import Eviction
from scheduler.core.profile import Profile
from scheduler.core.timetable import Timetable
from scheduler.core.types import (
    Alternative,
    Expected,
    Grant,
    Node,
    Placement,
    Pool,
    Preempt,
    Promise,
    Reason,
    Running,
    Snapshot,
    Stage,
)

OVERRUN = 1.25
FENCE_S = 120.0
# A promise is a range: it ends with the bad-case ends of what must end before, and is never narrower than this.
SLACK, LEAST_SLACK_S = 0.05, 60.0


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: when it could start, when it would end, and where."""

    way: Way
    start_at: float
    end_at: float
    placement: Placement

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(one for rank in self.placement.grants for one in rank)


@dataclass(eq=False, slots=True)
class Way:
    """An alternative on one group of like nodes, with what this cycle has learned about it.

    ``best`` is the speed of the fastest way of the same shape: what people declare about durations means that one.
    ``full`` says that no more of it fits now; ``refused_s`` that nothing that runs so long may start now; ``floor``
    holds pairs of a length and the earliest start that was found for it: both only get worse while a cycle goes on.
    """

    alternative: Alternative
    places: list[Candidate]
    speed: float
    best: float = 1.0
    full: bool = False
    refused_s: float = float("inf")
    floor: list[tuple[float, float]] = field(default_factory=list)
    fitting: dict[int, tuple[int, tuple[Grant, ...] | None, float]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Shape:
    """What stages have in common that ask for the same thing in the same place; worked out once."""

    pool: str
    nodes: int
    alternatives: tuple[Alternative, ...]
    ways: list[Way]
    funnel: tuple[tuple[str, int], ...]
    impossible: Reason | None
    eviction_refused: bool = False


@dataclass(slots=True)
class Outcome:
    """Where a waiting stage stands: what blocks it, and its entry in the timetable."""

    stage: Stage
    reasons: list[Reason] = field(default_factory=list)
    shape: Shape | None = None
    promise: Promise | None = None
    option: Option | None = None
    expected: Expected | None = None
    kept: bool = False
    ahead: int = 0
    busy: int = 0
    searched: bool = False
    refused: bool = False


class View:
    """The world of one cycle. ``now`` is the only clock."""

    def __init__(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile], now: float) -> None:
        self.snapshot, self.now = snapshot, now
        one = profiles if isinstance(profiles, Profile) else None
        self._profiles: Mapping[str, Profile] = {} if isinstance(profiles, Profile) else profiles
        self._same = one
        self.pools: dict[str, Pool] = {pool.name: pool for pool in snapshot.pools}
        self.projects = {project.id: project for project in snapshot.projects}
        self.nodes: dict[str, Node] = {node.id: node for node in snapshot.nodes}
        self.ledger = Ledger(snapshot)
        self.table = Timetable(self.ledger.devices, now)
        self.running = {stage.id: stage for stage in snapshot.running}
        self.waiting = {stage.id: stage for stage in snapshot.waiting}
        self.held: dict[tuple[str, str], int] = {}
        self.finish: dict[str, float] = {}
        self.evicting: dict[str, list[Running]] = {}
        for stage in sorted(snapshot.running, key=lambda one: one.id):
            self._enter(stage)
        self.fences = {
            device.id: device.fenced_for
            for device in self.ledger.devices.values()
            if device.fenced_for is not None and device.fenced_for in self.waiting
        }
        self.owners = {owner for owner in self.fences.values() if owner} | set(self.evicting)
        self.outcomes: dict[str, Outcome] = {}
        self.starts: dict[str, Option] = {}
        self.preempts: list[Preempt] = []
        self.doomed: set[str] = set()
        self.entries: dict[str, int] = {}
        self.ahead: dict[str, int] = {}
        self.broken: list[Stage] = []
        self.least_priority = min((one.priority for one in snapshot.running if one.preemptible), default=2**31)
        self._shapes: dict[object, Shape] = {}
        self._shape_of: dict[tuple[int, str, int, tuple[str, ...], tuple[str, ...]], Shape] = {}
        self._shares: dict[str, float] | None = None

    # -- what policies ask ------------------------------------------------------------------------------------------

    def profile(self, pool: str) -> Profile:
        return self._same or self._profiles[pool]

    def share(self, project: str) -> float:
        """The project's part of all decayed use, beside its part of all weights: 1 is its fair share."""
        if self._shares is None:
            used = sum(one.used_device_s for one in self.projects.values())
            weights = sum(one.weight for one in self.projects.values())
            self._shares = {
                one.id: (one.used_device_s / used) / (one.weight / weights) if used > 0 and one.weight > 0 else 0.0
                for one in self.projects.values()
            }
        return self._shares.get(project, 0.0)

    # -- predictions ------------------------------------------------------------------------------------------------

    def length_s(self, stage: Stage, way: Way, quantile: str) -> float:
        """How long the stage is predicted to run in this way; its time limit is the most."""
        base = stage.estimate.p50_s if quantile == "p50" else stage.estimate.p90_s
        length = max(base / (way.speed / way.best if stage.estimate.declared else way.speed), 1.0)
        return min(length, stage.time_limit_s) if stage.time_limit_s else length

    def predicted_end(self, stage: Running, quantile: str) -> float:
        """When a running stage will probably be done, always after now.

        The prediction is the quantile; measured progress corrects it; one that has passed is moved by a quarter as
        often as needed, so that it stands still in between. The time limit is the last word.
        """
        if stage.state is State.STOPPING:
            return max(stage.stop_by_at or self.now + stage.grace_s, self.now + 1.0)
        elapsed = max(self.now - stage.started_at, 0.0)
        rate = self._rate(stage)
        total = (stage.estimate.p50_s if quantile == "p50" else stage.estimate.p90_s) / rate
        if stage.progress is not None and stage.progress >= 0.05 and elapsed > 0 and quantile == "p50":
            total = elapsed / min(stage.progress, 1.0)
        if total <= elapsed:
            total = max(stage.estimate.p90_s / rate, 1.0)
        while total <= elapsed:
            total *= OVERRUN
        if stage.time_limit_s is not None:
            total = min(total, stage.time_limit_s)
            if total <= elapsed:
                return self.now + stage.grace_s
        return max(stage.started_at + total, self.now + 1e-3)

    # -- what the engine does ---------------------------------------------------------------------------------------

    def shape(self, stage: Stage) -> Shape:
        """The shape of the stage; the snapshot keeps its alternatives alive, so their identity may serve as a key."""
        near = (id(stage.alternatives), stage.pool, stage.nodes, stage.pinned, stage.avoid)
        known = self._shape_of.get(near)
        if known is None:
            key = (stage.kind, stage.precision, stage.alternatives, *near[1:])
            known = self._shapes.get(key) or self._shapes.setdefault(key, self._work_out(stage))
            self._shape_of[near] = known
        return known

    def start(self, stage: Stage, option: Option) -> None:
        """Give ``stage`` its devices now."""
        self.ledger.claim(option.grants)
        late = self.now + self.length_s(stage, option.way, "p90")
        self.table.take(stage.id, option.grants, self.now, option.end_at, late)
        self.starts[stage.id] = option
        self.finish[stage.id] = option.end_at
        self._count(stage.project, option.grants)

    def reserve(self, outcome: Outcome, option: Option, promise: Promise | None = None) -> None:
        """Enter ``option`` into the timetable; ``promise`` is the one that it keeps, a new one is made otherwise."""
        stage = outcome.stage
        if promise:
            late_at = promise.late_at
        else:
            slack_s = max(LEAST_SLACK_S, SLACK * (option.start_at - self.now))
            late_at = max(self.table.late(option.grants, option.start_at), option.start_at + slack_s)
        outcome.promise = Promise(
            stage=stage.id,
            start_at=option.start_at,
            end_at=option.end_at,
            late_at=max(late_at, option.start_at),
            placement=option.placement,
            made_at=promise.made_at if promise else self.now,
        )
        outcome.option = option
        late_end = outcome.promise.late_at + self.length_s(stage, option.way, "p90")
        self.table.take(stage.id, option.grants, option.start_at, option.end_at, late_end)
        self.finish[stage.id] = option.end_at
        self.entries[stage.pool] = self.entries.get(stage.pool, 0) + 1

    def unreserve(self, outcome: Outcome) -> None:
        """Take the entry out again, to put it elsewhere."""
        self.table.drop(outcome.stage.id)
        self.entries[outcome.stage.pool] -= 1
        outcome.promise = outcome.option = None

    def evict(self, outcome: Outcome, eviction: Eviction) -> None:
        """Mark the victims and keep what the preemptor needs of the rest; it starts when they are gone."""
        stage, option = outcome.stage, eviction.option
        fenced = tuple(one.device for one in option.grants if self._is_scarce(one))
        for victim, price in zip(eviction.victims, eviction.prices, strict=True):
            self.preempts.append(Preempt(victim.id, stage.id, round(price, 6), round(eviction.gain, 6), fenced))
            self.doomed.add(victim.id)
            self.table.drop(victim.id)
            grants = [one for rank in victim.placement.grants for one in rank]
            self.table.take(victim.id, grants, self.now, option.start_at, option.start_at)
        self.ledger.hold(option.grants)
        self.reserve(outcome, option)

    def _is_scarce(self, one: Grant) -> bool:
        """Whether a freed share must be fenced: accelerators always, CPU cores only where too few are free as it is."""
        milli, memory = self.ledger.free(one.device)
        return self.ledger.devices[one.device].kind != "cpu" or milli < one.milli or memory < one.memory_bytes

    def close_fences(self) -> None:
        """Take from everybody else what stands free behind a fence."""
        for device, owner in sorted(self.fences.items()):
            if owner in self.starts:
                continue
            milli, memory = self.ledger.free(device)
            if milli > 0 or memory > 0:
                self.ledger.close(device)
                self.table.take(
                    f"fence {device}", [Grant(device, milli, memory)], self.now, self.now + FENCE_S, self.now + FENCE_S
                )

    def _enter(self, stage: Running) -> None:
        profile = self.profile(stage.pool)
        grants = [one for rank in stage.placement.grants for one in rank]
        end = self.predicted_end(stage, profile.plan_with)
        late = end if profile.plan_with == "p90" else max(end, self.predicted_end(stage, "p90"))
        self.table.take(stage.id, grants, self.now, end, late)
        self.finish[stage.id] = end
        self._count(stage.project, grants)
        if stage.evicted_for is not None and stage.evicted_for in self.waiting:
            self.evicting.setdefault(stage.evicted_for, []).append(stage)

    def _rate(self, stage: Running) -> float:
        rates = [
            speed.speed(stage.kind, stage.precision, self.ledger.devices[one.device], self.snapshot.speeds)
            for rank in stage.placement.grants
            for one in rank
            if one.device in self.ledger.devices
        ]
        kinds = [
            self.ledger.devices[one.device].kind
            for rank in stage.placement.grants
            for one in rank
            if one.device in self.ledger.devices
        ]
        special = [rate for rate, kind in zip(rates, kinds, strict=True) if kind != "cpu"]
        return min(special or rates, default=1.0)

    def _count(self, project: str, grants: Iterable[Grant]) -> None:
        for one in grants:
            if one.device in self.ledger.devices:
                key = (project, self.ledger.devices[one.device].kind)
                self.held[key] = self.held.get(key, 0) + one.milli

    def _work_out(self, stage: Stage) -> Shape:
        inside = [node for node in self.snapshot.nodes if stage.pool in node.pools]
        allowed = [
            node for node in inside if (not stage.pinned or node.id in stage.pinned) and node.id not in stage.avoid
        ]
        ways: list[Way] = []
        matching: dict[str, Node] = {}
        largest = 0
        for alternative in stage.alternatives:
            whole = [place for node in allowed if (place := match.candidate(alternative, node, healthy=False))]
            usable = [
                place
                for node in allowed
                if node.state is NodeState.READY and (place := match.candidate(alternative, node))
            ]
            matching.update((place.node.id, place.node) for place in whole)
            largest = max(largest, len(whole))
            ways += self._ways(stage, alternative, sorted(usable, key=lambda place: place.node.id))
        possible = [way for way in ways if len(way.places) >= stage.nodes]
        for way in possible:
            way.best = max(other.speed for other in possible)
        ready = {place.node.id for way in ways for place in way.places}
        funnel = (
            ("nodes", len(self.snapshot.nodes)),
            (f"in pool {stage.pool}", len(inside)),
            *((("where its data lie or not avoided", len(allowed)),) if len(allowed) != len(inside) else ()),
            ("with matching devices", len(matching)),
            ("ready and healthy", len(ready)),
        )
        impossible = None
        if not possible:
            impossible = _impossible(stage, len(matching), largest, len(matching) - len(ready))
        return Shape(stage.pool, stage.nodes, stage.alternatives, possible, funnel, impossible)

    def _ways(self, stage: Stage, alternative: Alternative, places: list[Candidate]) -> list[Way]:
        at = speed.deciding(alternative.asks)
        groups = [list(range(len(places)))] if places else []
        for policy in self.profile(stage.pool).groups:
            groups = policy.groups(stage, [(place.node, place.matches[at]) for place in places])
        return [
            Way(
                alternative,
                [places[i] for i in group],
                min(
                    speed.speed(stage.kind, stage.precision, device, self.snapshot.speeds)
                    for i in group
                    for device in places[i].matches[at]
                ),
            )
            for group in groups
        ]


def _impossible(stage: Stage, matching: int, largest: int, unavailable: int) -> Reason:
    asks = asks_text(stage.alternatives, stage.nodes)
    if not matching:
        return Reason("NoMatchingDevice", {"pool": stage.pool, "asks": asks})
    if largest < stage.nodes:
        return Reason("ExceedsClusterMax", {"pool": stage.pool, "asks": asks, "nodes": largest, "needed": stage.nodes})
    if unavailable:
        return Reason("NodesUnavailable", {"nodes": unavailable, "pool": stage.pool})
    # Enough nodes match, but no sort of device is on enough of them.
    return Reason("ExceedsClusterMax", {"pool": stage.pool, "asks": f"{asks} of one model", "needed": stage.nodes})


def asks_text(alternatives: Iterable[Alternative], nodes: int) -> str:
    """The request in words: ``2 nodes with 8 gpu H100 · 8 cores · 64 GiB, or 1 core``."""
    ways = []
    for alternative in alternatives:
        parts = []
        for ask in alternative.asks:
            memory = f" {ask.memory_bytes / 2**30:.4g} GiB" if ask.memory_bytes else ""
            if ask.kind == "cpu":
                cores = ask.count * ask.milli / 1000
                parts.append(f"{cores:.4g} core{'s' * (cores != 1)}{memory}")
            else:
                share = "" if ask.milli == 1000 else f" x {ask.milli}/1000"
                name = " ".join(word for word in (ask.kind, ask.vendor, ask.model) if word)
                parts.append(f"{ask.count} {name}{share}{memory}")
        ways.append(" · ".join(parts))
    text = ", or ".join(ways)
    return f"{nodes} nodes with {text}" if nodes > 1 else text
