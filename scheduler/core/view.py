"""What the engine knows and has decided so far; the engine writes it, policies only read it.

A view may look at one world after another. It then takes over what has not changed since, which it tells by identity:
a stage that is the same object is the same stage. What a cycle had decided is undone first; the next snapshot says what
became of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from scheduler.core import fences, lateness, speed
from scheduler.core import shape as shapes
from scheduler.core.charges import charge
from scheduler.core.clauses import clause, say
from scheduler.core.commitments import Commitments
from scheduler.core.elastic import faster
from scheduler.core.fleet import Fleet
from scheduler.core.heads import Heads
from scheduler.core.holders import Holders
from scheduler.core.holdings import Holdings
from scheduler.core.ledger import Ledger
from scheduler.core.lifecycle import State
from scheduler.core.line import Column, Line
from scheduler.core.ports import Eviction
from scheduler.core.profile import Profile
from scheduler.core.rights import Rights
from scheduler.core.shape import Shape, Way, asks_text
from scheduler.core.timetable import ALWAYS, Timetable
from scheduler.core.types import (
    Expected,
    Grant,
    Maintenance,
    Move,
    News,
    Node,
    Placement,
    Pool,
    Preempt,
    Project,
    Promise,
    Quota,
    Reason,
    Resize,
    Running,
    Snapshot,
    Stage,
)

if TYPE_CHECKING:
    from scheduler.core.rotation import Rotation

__all__ = ["Booking", "Option", "Outcome", "Shape", "View", "Way", "asks_text"]

T = TypeVar("T", Stage, Running, Node)
OVERRUN = 1.25
# Of more newcomers than this the columns of the queue are written as columns.
FEW = 32
# What the first ranks of a stage that gives others back are entered under, after its id.
GOES_ON = " goes on"
# A promise is a range: it ends as late as promises like it were kept by, before any were with the bad-case ends of what
# must end before, and is never narrower than this.
SLACK, LEAST_SLACK_S = 0.05, 60.0
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: when it could start, when it would end, and where; ``among`` is on how many nodes it
    fitted when this was chosen, ``score`` how good its best place was found."""

    way: Way
    start_at: float
    end_at: float
    placement: Placement
    among: int = 0
    score: float = 0.0

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(one for rank in self.placement.grants for one in rank)


@dataclass(frozen=True, slots=True)
class Booking:
    """An entry of the timetable: what was promised to a stage, and where it really stands."""

    stage: Stage
    promise: Promise
    option: Option


@dataclass(slots=True)
class Outcome:
    """Where a waiting stage stands: what blocks it, and its entry in the timetable."""

    stage: Stage
    reasons: list[Reason] = field(default_factory=list)
    shape: Shape | None = None
    expected: Expected | None = None
    kept: bool = False
    ahead: int = 0
    busy: int = 0
    searched: bool = False
    refused: bool = False


@dataclass(slots=True)
class Again:
    """Whom it concerns that something is not what it was: ``nodes`` that a request can tell from before, ``pools`` with
    another profile, ``kinds`` of stages with another speed, and stages that are entered anew; ``stirred`` are those
    whose entry may move for another reason, and ``is_usual_other`` says that other requests are typical."""

    nodes: set[str] = field(default_factory=set)
    pools: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    stirred: set[str] = field(default_factory=set)
    is_usual_other: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes or self.pools or self.kinds or self.is_usual_other)


class View:
    """The world of one cycle. ``now`` is the only clock. ``freed`` are the node rows on which something was given back
    since the last look; ``None`` means that there was no last look. ``stirred`` are stages with an entry that something
    kept from starting then and not now, or the other way."""

    def __init__(
        self,
        snapshot: Snapshot,
        profiles: Profile | Mapping[str, Profile],
        now: float,
        news: News | None = None,
    ) -> None:
        self.snapshot, self._profiles, self.now = snapshot, profiles, now
        self._is_new = True
        self._shares: dict[str, float] | None = None
        self._undone: dict[str, Running] = {}
        self._serial = -2
        self._quotas: tuple[Quota, ...] = ()
        self.rights = Rights(())
        self.projects: dict[str, Project] = {}
        self.look(snapshot, profiles, now, news)

    # -- what policies ask ------------------------------------------------------------------------------------------

    def profile(self, pool: str) -> Profile:
        profiles = self._profiles
        return profiles if isinstance(profiles, Profile) else profiles[pool]

    def takes_turns(self, pool: str) -> bool:
        """Whether the stages of a pool share its devices over time."""
        return self.profile(pool).rotates != "none"

    def share(self, project: str) -> float:
        """The project's part of all that was received and is committed, beside its part of all weights: 1 is its fair
        share."""
        if self._shares is None:
            taken = {one.id: self.taken(one.id) for one in self.projects.values()}
            whole, weights = sum(taken.values()), sum(one.weight for one in self.projects.values())
            self._shares = {
                one.id: (taken[one.id] / whole) / (one.weight / weights) if whole > 0 and one.weight > 0 else 0.0
                for one in self.projects.values()
            }
        return self._shares.get(project, 0.0)

    def taken(self, project: str) -> float:
        """What the project has received, decayed, and will by what it holds: device-seconds weighted by worth."""
        known = self.projects.get(project)
        return (known.used_device_s if known else 0.0) + self.commitments.of(project, self.now)

    def weight(self, project: str) -> float:
        """The weight of a project in fair share; never nothing."""
        known = self.projects.get(project)
        return max(known.weight, LEAST_WEIGHT) if known else 1.0

    def charge(self, grants: Iterable[Grant]) -> float:
        """What a second of these counts in the use of their project."""
        row, each = self.fleet.row, self.fleet.charge
        return sum(float(each[row[one.device]]) * one.milli for one in grants if one.device in row) / 1000

    def charges(self, slots: Column) -> Column:
        """What each of these waiting stages (slots of the line) will count in the use of its project, if it runs as
        long as predicted where it is fastest; nothing for one that is held or needs what is not done."""
        line = self.line
        self._kin_charges += [_charge_of(shape, self.fleet) for shape, _ in line.kins[len(self._kin_charges) :]]
        rates = np.array(self._kin_charges)[line.kin[slots]]
        return np.where(line.is_blocked[slots], 0.0, rates * line.length_s[slots])

    def charge_of(self, stage: Stage) -> float:
        """What a second of the stage counts in the use of its project, where it is fastest."""
        return _charge_of(self.shape(stage), self.fleet)

    def _forget_charges(self) -> None:
        """Work out anew what stages and pools count: devices are not what they were."""
        self.heads = Heads()
        # By kin of the line, and by pool.
        self._kin_charges: list[float] = []
        self._sizes: dict[str, float] = {}

    def size(self, pool: str) -> float:
        """What a second of all accelerators of a pool counts in the use of projects; of all cores where it has none."""
        if pool not in self._sizes:
            alike = [one for some in self.fleet.in_pool(pool).values() for _, one in some]
            each = [
                (device.kind, charge(device) * device.capacity_milli * len(one.nodes))
                for one in alike
                for device in one.sample.devices
            ]
            special = [held for kind, held in each if kind != "cpu"] or [held for _, held in each]
            self._sizes[pool] = math.fsum(special) / 1000
        return self._sizes[pool]

    @property
    def least_priority(self) -> int:
        """The lowest priority of any stage that could be stopped."""
        return min((priority for priority, count in self._preemptible.items() if count), default=2**31)

    # -- predictions ------------------------------------------------------------------------------------------------

    def length_s(self, stage: Stage, way: Way, quantile: str, size: int = 0) -> float:
        """How long the stage is predicted to run in this way; its time limit is the most. ``size`` is on how many nodes
        where it is elastic, its least otherwise."""
        base = stage.estimate.p50_s if quantile == "p50" else stage.estimate.p90_s
        length = max(base / (way.speed / way.best if stage.estimate.declared else way.speed), 1.0)
        length = length / faster(stage.nodes, size, stage.scaling) if size > stage.nodes else length
        return min(length, stage.time_limit_s) if stage.time_limit_s else length

    def worst_s(self, stage: Stage, way: Way) -> float:
        """How long it runs in this way in the bad case: nine of ten stages like it end sooner, or its limit ends it."""
        return self.length_s(stage, way, "p90")

    def predicted_end(self, stage: Running, quantile: str, rate: float | None = None) -> float:
        """When a running stage will probably be done, always after now.

        The prediction is the quantile; measured progress corrects it; one that has passed is moved by a quarter as
        often as needed, so that it stands still in between. The time limit is the last word. ``rate`` is how fast it
        runs, where that is known already.
        """
        if stage.state is State.STOPPING and not stage.keeps:
            return self._stopped_at(stage)
        elapsed = max(self.now - stage.started_at, 0.0)
        rate = self._rate(stage) if rate is None else rate
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

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(
        self,
        snapshot: Snapshot,
        profiles: Profile | Mapping[str, Profile],
        now: float,
        news: News | None = None,
    ) -> None:
        """See the world as it is ``now``. With ``news`` of the same store, only what is in them is looked at, if the
        last look was at the snapshot before."""
        follows, again = False, Again()
        nodes: dict[str, Node | None] = {}
        if self._is_new or now < self.now:
            self._begin(snapshot, profiles)
            self._is_new = False
        else:
            self._undo()
            follows = news is not None and news.serial == self._serial + 1
            if news is not None and follows:
                nodes = {name: one for name, one in news.nodes.items() if self.nodes.get(name) is not one}
            elif snapshot.nodes is not self.snapshot.nodes:
                nodes = _differences(self.nodes, snapshot.nodes)
            nodes = {name: one for name, one in nodes.items() if self.nodes.get(name) != one}
            again = self._concerned(snapshot, profiles, nodes)
        windows = self.snapshot.maintenance
        self.snapshot, self.now, self._profiles = snapshot, now, profiles
        self.pools: dict[str, Pool] = {pool.name: pool for pool in snapshot.pools}
        self.projects = {project.id: project for project in snapshot.projects}
        if snapshot.quotas is not self._quotas:
            self._quotas, self.rights = snapshot.quotas, Rights(snapshot.quotas)
        self._shares = None
        self.outcomes: dict[str, Outcome] = {}
        self.starts: dict[str, Option] = {}
        self.preempts: list[Preempt] = []
        self.resizes: list[Resize] = []
        self.moves: list[Move] = []
        self.wakes: list[float] = []
        self.turns: list[Rotation] = []
        self.doomed: set[str] = set()
        self.ahead: dict[str, int] = {}
        self.broken: list[Stage] = []
        self.lifted: set[str] = set()
        self.stirred: set[str] = set(snapshot.stirred) | again.stirred
        self.evictable: dict[object, bool] = {}
        self._positions: Column | None = None
        self.refusals: dict[object, list[Reason]] = {}
        for one in self._shapes.values():
            one.evictions_refused.clear()
            for way in one.ways:
                way.forget()
        if news is None or not follows:
            running = _differences(self.running, snapshot.running)
            waiting = _differences(self.waiting, snapshot.waiting)
        else:
            running = {**self._undone, **news.running}
            waiting = {name: one for name, one in news.waiting.items() if self.waiting.get(name) is not one}
        self._undone = {}
        self._serial = news.serial if news is not None else -2
        begun = self._begun
        running = {**{name: self.running[name] for name in again.running if name in self.running}, **running}
        for name in running:
            if name in self.running:
                self._leave(self.running.pop(name))
        again.waiting |= self._see_nodes(nodes, again, windows)
        waiting = {**{name: self.waiting[name] for name in again.waiting if name in self.waiting}, **waiting}
        self._see_running(running)
        for name, option in begun.items():
            if name not in self.running:
                self.free(option.grants)
        self.ledger.settle()
        self._see_waiting(waiting)
        self._see_promises()
        self.fences = {
            device.id: device.fenced_for
            for node in self._fenced.values()
            for device in node.devices
            if device.fenced_for is not None and device.fenced_for in self.waiting
        }
        self.fence_ends = {
            device.id: device.fenced_until or fences.until(now, ())
            for node in self._fenced.values()
            for device in node.devices
            if device.id in self.fences
        }
        self.evicting: dict[str, list[Running]] = {}
        for name in sorted(self._told_to_stop):
            stage = self.running[name]
            if stage.evicted_for in self.waiting:
                self.evicting.setdefault(str(stage.evicted_for), []).append(stage)
                self._expect(stage.project, grants_of(stage), -1)
        for name in self.evicting:
            if name in self.booked:
                self._expect(self.waiting[name].project, self.booked[name].option.grants, 1)
        # Who is served from the guaranteed part of a pool; those that wait come first in the queue.
        self.guaranteed: set[str] = set()
        # Whose promise is looked at again because another project is owed more, with that project.
        self.yielded: dict[str, str] = {}
        # Who was entered behind whom of their class.
        self.followers: dict[str, str] = {}
        # Who starts sooner if they do.
        self.owed: set[str] = set()
        # By pool: slots of the line, and what the project of each will have received before it.
        self.due: dict[str, tuple[Column, Column]] = {}
        # By pool: what its projects have received, and will if all that waits runs.
        self.spoken: dict[str, float] = {}
        self.owners = {owner for owner in self.fences.values() if owner} | set(self.evicting)

    def _concerned(
        self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile], nodes: Mapping[str, Node | None]
    ) -> Again:
        """Whom it concerns that these nodes, the pools, their profiles and the measured speeds are not what they were.
        What stood on the nodes is taken out of the timetable."""
        before, found = self.snapshot, Again()
        names = {one.name for one in snapshot.pools} | {one.name for one in before.pools}
        if snapshot.pools != before.pools:
            known, now = {one.name: one for one in before.pools}, {one.name: one for one in snapshot.pools}
            found.stirred = {
                name for name, one in self.booked.items() if known.get(one.stage.pool) != now.get(one.stage.pool)
            }
            found.is_usual_other = [one.typical for one in before.pools] != [one.typical for one in snapshot.pools]
        if profiles is not self._profiles and profiles != self._profiles:
            found.pools = {name for name in names if _profile_of(profiles, name) != _profile_of(self._profiles, name)}
        if snapshot.speeds != before.speeds:
            keys = {*snapshot.speeds, *before.speeds}
            found.kinds = {key[0] for key in keys if snapshot.speeds.get(key) != before.speeds.get(key)}
        if found.pools or found.kinds:
            self._speeds.clear()
            for name, run in self.running.items():
                if run.pool in found.pools or run.kind in found.kinds:
                    found.running.add(name)
            for name, stage in self.waiting.items():
                if stage.pool in found.pools or stage.kind in found.kinds:
                    found.waiting.add(name)
                    self._unbook_for_now(name)
        for name, one in nodes.items():
            if one is not None and self.fleet.is_like_before(one):
                continue
            found.nodes.add(name)
            if name not in self.fleet.node_row:
                found.running |= {other for other, run in self.running.items() if name in run.placement.nodes}
                continue
            for owner in self.table.owners(self.fleet.rows_at(self.fleet.node_row[name])):
                found.running |= {owner, owner.removesuffix(GOES_ON)} & self.running.keys()
                self._unbook_for_now(owner)
        return found

    def _unbook_for_now(self, name: str) -> None:
        """Take out the entry of a stage, if it has one; what is on record is entered again later."""
        if name in self.booked:
            self.free(self.unbook(name).option.grants)

    def _see_nodes(self, nodes: Mapping[str, Node | None], again: Again, windows: tuple[Maintenance, ...]) -> set[str]:
        """Let nodes be as they are now, with the shapes of all requests; what ran on those that are concerned was taken
        out before. Gives the waiting stages whose ways to run are not those of before."""
        if not nodes and not again and self.snapshot.maintenance == windows:
            return set()
        rows = [self.fleet.node_row[name] for name in nodes if name in self.fleet.node_row]
        deep = {row for name in again.nodes if (row := self.fleet.node_row.get(name)) is not None}
        moved = bool(again.nodes) or self.snapshot.maintenance != windows
        kits = {kit for row in deep if (kit := self.fleet.kit_of(row)) is not None}
        pools = {pool for row in deep for pool in self.fleet.nodes[row].pools}
        if moved:
            self._open(windows, anew=self.snapshot.maintenance == windows)
        for name, node in nodes.items():
            if node is None:
                self.fleet.take_out(name)
                del self.nodes[name]
                self._fenced.pop(name, None)
                continue
            self.fleet.put(node)
            self.nodes[name] = node
            rows.append(self.fleet.node_row[name])
            if name in again.nodes:
                deep.add(self.fleet.node_row[name])
            if any(device.fenced_for for device in node.devices):
                self._fenced[name] = node
            else:
                self._fenced.pop(name, None)
        if deep or again:
            self._forget_charges()
        for row in sorted(deep):
            self.ledger.follow(row)
            self.table.follow(row)
        if self.freed is not None:
            self.freed |= deep
        if moved:
            self._close(self.snapshot.maintenance)
        self.ledger.touched += sorted(set(rows) - deep)
        kits |= {kit for row in deep if (kit := self.fleet.kit_of(row)) is not None}
        pools |= {pool for row in deep for pool in self.fleet.nodes[row].pools}
        concerned = {one for one in self._shapes.values() if deep and shapes.is_concerned(one, self.fleet, kits, pools)}
        others = self._see_shapes(sorted(set(rows)), sorted(deep), again, concerned)
        kins = [code for code, (shape, _) in enumerate(self.line.kins) if shape in others]
        slots = self.line.slots() if kins else np.zeros(0, dtype=np.int64)
        return {stage.id for stage in self.line.stages[slots[np.isin(self.line.kin[slots], kins)]]}

    def _see_shapes(
        self, rows: Sequence[int], deep: Sequence[int], again: Again, concerned: Collection[Shape]
    ) -> set[Shape]:
        """Let all shapes follow the nodes in ``rows``, of which those in ``deep`` are of another class than before,
        which is of interest to the shapes ``concerned``; gives those whose ways are others now."""
        others = set()
        if again.pools:
            for key in [key for key, one in self._shapes.items() if one.pool not in self.pools]:
                del self._shapes[key]
            self._shape_of.clear()
        for shape in self._shapes.values() if rows or again else ():
            profile, speeds = self.profile(shape.pool), self.snapshot.speeds
            if shape.pool in again.pools or shape.sample.kind in again.kinds:
                shapes.work_out_anew(shape, self.fleet, profile, speeds)
            elif shape in concerned and shapes.change(shape, self.fleet, profile, speeds, deep):
                others.add(shape)
            for way in shape.every:
                way.places.forget(rows)
                if again.is_usual_other:
                    way.judge_anew()
        for name in [name for name, one in self.booked.items() if self.shape(one.stage) in others]:
            self.stirred.add(name)
            self._unbook_for_now(name)
        return others

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        """Forget everything."""
        self.snapshot, self._profiles = snapshot, profiles
        self.nodes: dict[str, Node] = {node.id: node for node in snapshot.nodes}
        self._fenced = {node.id: node for node in snapshot.nodes if any(one.fenced_for for one in node.devices)}
        self.fleet = Fleet(snapshot.nodes)
        self.ledger = Ledger(self.fleet)
        self.table = Timetable(self.fleet)
        self._close(snapshot.maintenance)
        self.line = Line()
        self.holders = Holders(self.fleet)
        self.commitments = Commitments()
        self._forget_charges()
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Stage] = {}
        self.held = Holdings()
        self.finish: dict[str, float] = {}
        self.booked: dict[str, Booking] = {}
        # Whose entry was made, moved or taken out since the last look.
        self._rewritten: set[str] = set()
        # Whose promise on record could not be entered.
        self._astray: set[str] = set()
        self.entries: dict[str, dict[int, int]] = {}
        self.freed: set[int] | None = None
        if snapshot.given_back is not None:
            self.freed = {row for name in snapshot.given_back if (row := self.fleet.node_row.get(name)) is not None}
        self.starts = {}
        self.doomed = set()
        self.gated: set[str] = set()
        self._tentative: list[str] = []
        self._drifting: set[str] = set()
        self._ends: list[tuple[float, str]] = []
        self._told_to_stop: set[str] = set()
        self.elastic: set[str] = set()
        self._undone = {}
        self._begun: dict[str, Option] = {}
        self._expected: list[tuple[str, tuple[Grant, ...], int]] = []
        self._serial = -2
        self._preemptible: dict[int, int] = {}
        self._speeds: dict[tuple[str, str, int, str], float] = {}
        self._shapes: dict[object, Shape] = {}
        self._shape_of: dict[object, tuple[object, Shape]] = {}
        # Of the very stages that wait, by identity: nobody else can have it while they do.
        self._shape_here: dict[int, Shape] = {}

    def _open(self, windows: Iterable[Maintenance], *, anew: bool) -> None:
        """Take out the times in which nodes do not serve. Unless they are entered ``anew``, anything may be had earlier
        on these nodes."""
        for window in windows:
            self.table.drop(f"maintenance {window.id}")
            if self.freed is not None and not anew:
                rows = (self.fleet.node_row.get(name) for name in window.nodes)
                self.freed.update(row for row in rows if row is not None)

    def _close(self, windows: Iterable[Maintenance]) -> None:
        """Enter the times in which nodes do not serve."""
        self.closed: dict[str, list[Maintenance]] = {}
        for window in sorted(windows, key=lambda one: (one.start_at, one.id)):
            nodes = [self.nodes[name] for name in window.nodes if name in self.nodes]
            for node in nodes:
                self.closed.setdefault(node.id, []).append(window)
            grants = [
                Grant(device.id, device.capacity_milli, device.memory_bytes)
                for node in nodes
                for device in node.devices
            ]
            self.table.take(f"maintenance {window.id}", grants, window.start_at, window.end_at, window.end_at)

    def closing(self, nodes: Iterable[str], since: float, until: float) -> Maintenance | None:
        """The first maintenance of one of these nodes that something which runs there in this time would meet."""
        for node in nodes if self.closed else ():
            for window in self.closed.get(node, ()):
                if window.start_at < until and window.end_at > since:
                    return window
        return None

    def may_meet(self, stage: Stage, option: Option) -> bool:
        """Whether the stage, begun so, would in the bad case still run when a maintenance of its nodes begins."""
        if not self.closed:
            return False
        until = option.start_at + self.worst_s(stage, option.way)
        return self.closing(option.placement.nodes, option.start_at, until) is not None

    def _undo(self) -> None:
        """Take back what the last cycle decided."""
        self.freed = set()
        self.ledger.rollback(0)
        for owner in self._tentative:
            self.table.drop(owner)
        self._tentative = []
        for project, grants, sign in self._expected:
            self._count(project, grants, -sign)
        self._expected = []
        self._begun = self.starts
        for name, option in self.starts.items():
            self._count(self.waiting[name].project, option.grants, -1)
            self.commitments.forget(name)
            self.finish.pop(name, None)
        for name in self.doomed:
            self._undone[name] = stage = self.running.pop(name)
            self._leave(stage)

    def _see_running(self, changes: Mapping[str, Running | None]) -> None:
        """Enter those that run now and are not what they were, and say anew when those will be done that are late."""
        came = {name: stage for name, stage in sorted(changes.items()) if stage is not None}
        is_first = not self.running
        self.running.update(came)
        if is_first:
            self._enter_all(list(came.values()))
        else:
            for stage in came.values():
                self._enter(stage)
        late = set(self._drifting)
        while self._ends and self._ends[0][0] <= self.now:
            end, name = heapq.heappop(self._ends)
            if self.finish.get(name) == end:
                late.add(name)
        for name in sorted(late):
            if name in self.running:
                self._vacate(name)
                self._foresee(self.running[name])

    def _enter(self, stage: Running) -> None:
        grants = grants_of(stage)
        self.ledger.occupy(grants)
        self._count(stage.project, grants, 1)
        self.holders.enter([stage])
        self._note(stage)
        self._foresee(stage)

    def _enter_all(self, stages: Sequence[Running]) -> None:
        """The same for many, where nobody was entered before."""
        row = self.fleet.row
        holds = [tuple((row[one.device], one) for one in grants_of(stage) if one.device in row) for stage in stages]
        self.ledger.fill([one for held in holds for one in held])
        self.holders.enter(stages)
        for stage, held in zip(stages, holds, strict=True):
            self._count(stage.project, [one for _, one in held], 1)
            self._note(stage)
        foreseen = {stage.id: self._foreseen(stage) for stage in stages}
        plain = [i for i, stage in enumerate(stages) if not stage.keeps]
        names = [stages[i].id for i in plain]
        ends, lates = [foreseen[name][0] for name in names], [foreseen[name][1] for name in names]
        self.table.fill(names, [holds[i] for i in plain], ends, lates)
        for stage in stages:
            end, late = foreseen[stage.id]
            if stage.keeps:
                self._occupy(stage, stage.keeps, self._stopped_at(stage), end, late)
            self._expect_end(stage, end)

    def _note(self, stage: Running) -> None:
        """Count a running stage among those of its sort."""
        if stage.preemptible:
            self._preemptible[stage.priority] = self._preemptible.get(stage.priority, 0) + 1
        if stage.evicted_for is not None:
            self._told_to_stop.add(stage.id)
        if stage.most_nodes > stage.least_nodes:
            self.elastic.add(stage.id)

    def _foresee(self, stage: Running) -> None:
        """Write down when it will probably be done."""
        end, late = self._foreseen(stage)
        self._occupy(stage, stage.keeps, self._stopped_at(stage) if stage.keeps else end, end, late)
        self._expect_end(stage, end)

    def _expect_end(self, stage: Running, end: float) -> None:
        self.finish[stage.id] = end
        self.commitments.expect(stage.id, stage.project, self.charge(grants_of(stage)), end)
        if self._drifts(stage):
            self._drifting.add(stage.id)
        else:
            heapq.heappush(self._ends, (end, stage.id))

    def _foreseen(self, stage: Running) -> tuple[float, float]:
        """When it will probably be done, and when at worst."""
        quantile = self.profile(stage.pool).plan_with
        rate = self._rate(stage)
        end = self.predicted_end(stage, quantile, rate)
        return end, end if quantile == "p90" else max(end, self.predicted_end(stage, "p90", rate))

    def _drifts(self, stage: Running) -> bool:
        """Whether its predicted end changes with the clock."""
        ran_out = stage.time_limit_s is not None and self.now - stage.started_at >= stage.time_limit_s
        return stage.progress is not None or stage.state is State.STOPPING or ran_out

    def next_end(self) -> float | None:
        """When the first of those that run will probably be done."""
        while self._ends and self.finish.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        ends = [self.finish[name] for name in self._drifting if name in self.finish]
        ends += [end for end, _ in self._ends[:1]]
        return min((end for end in ends if end > self.now), default=None)

    def _stopped_at(self, stage: Running) -> float:
        """When a stage that was told to stop has done so."""
        return max(stage.stop_by_at or self.now + stage.grace_s, self.now + 1.0)

    def _occupy(self, stage: Running, keeps: int, until: float, end: float, late: float) -> None:
        """Enter what a running stage holds ``until`` then, and its first ranks, which it ``keeps``, until its end."""
        ranks = stage.placement.grants
        given = tuple(one for rank in ranks[keeps:] for one in rank)
        self.table.take(stage.id, given, ALWAYS, until, late if not keeps else until)
        if keeps:
            kept = tuple(one for rank in ranks[:keeps] for one in rank)
            self.table.take(f"{stage.id}{GOES_ON}", kept, ALWAYS, end, late)

    def _vacate(self, name: str) -> None:
        """Take out what a running stage was foreseen to hold."""
        self.table.drop(name)
        self.table.drop(f"{name}{GOES_ON}")

    def _leave(self, stage: Running) -> None:
        grants = grants_of(stage)
        self.ledger.release(grants)
        self._vacate(stage.id)
        self.holders.leave(stage.id)
        self.commitments.forget(stage.id)
        self._count(stage.project, grants, -1)
        if stage.preemptible:
            self._preemptible[stage.priority] -= 1
        self._told_to_stop.discard(stage.id)
        self.elastic.discard(stage.id)
        self._drifting.discard(stage.id)
        self.finish.pop(stage.id, None)
        self.free(grants)

    def free(self, grants: Iterable[Grant]) -> None:
        """Note that these may be had earlier than at the last look."""
        if self.freed is not None:
            rows = (self.fleet.row.get(one.device) for one in grants)
            self.freed.update(self.fleet.owner[row] for row in rows if row is not None)

    def _see_waiting(self, changes: Mapping[str, Stage | None]) -> None:
        for name, new in changes.items():
            if name in self.waiting:
                self._shape_here.pop(id(self.waiting[name]), None)
            if new is None and name in self.waiting:
                del self.waiting[name]
                self.gated.discard(name)
            if name in self.line.slot and (new is None or self.takes_turns(new.pool)):
                self.line.leave(name)
            if name in self.booked and not self._still_stands(self.booked[name], new):
                self.free(self.booked[name].option.grants)
                self.unbook(name)
        came = [new for new in changes.values() if new is not None]
        self.waiting.update((stage.id, stage) for stage in came)
        self._shape_here.update((id(stage), self._find_shape(stage)) for stage in came)
        turning = {stage.pool for stage in came}
        turning = {pool for pool in turning if self.takes_turns(pool)}
        queued = [stage for stage in came if stage.pool not in turning] if turning else came
        if len(queued) <= FEW:
            for stage in queued:
                group = self.group(stage)
                self.line.enter(stage, group, (group[0], stage.priority), self._least_s(stage))
        else:
            groups = [self.group(stage) for stage in queued]
            kins = [(group[0], stage.priority) for group, stage in zip(groups, queued, strict=True)]
            self.line.fill(queued, groups, kins, np.array([self._least_s(stage) for stage in queued]))
        for stage in came:
            self._note_waiting(stage)

    def _see_promises(self) -> None:
        """Let each entry stand as the record has it: what the last cycle decided may not have been written, and where
        an entry could not be made it is tried again."""
        astray, self._astray = self._astray, set()
        for name in sorted((self._rewritten | astray) & self.waiting.keys()):
            stage, booking = self.waiting[name], self.booked.get(name)
            if booking is not None:
                promise = booking.promise
                is_kept = self.profile(stage.pool).timetable != "none" and promise.start_at == booking.option.start_at
                if is_kept and stage.promise == promise:
                    continue
                self.free(self.unbook(name).option.grants)
            if stage.promise is not None:
                self._rebook(stage, stage.promise)
        self._rewritten = set()

    def _note_waiting(self, stage: Stage) -> None:
        """Count a stage among those of its sort, and bring its entry up to date."""
        if stage.begin_at is not None or stage.retry_at is not None:
            self.gated.add(stage.id)
        if stage.id in self.booked:
            old = self.booked[stage.id].stage
            if (old.unmet, old.begin_at, old.retry_at, old.state) != (
                stage.unmet,
                stage.begin_at,
                stage.retry_at,
                stage.state,
            ):
                self.stirred.add(stage.id)
            self.booked[stage.id] = replace(self.booked[stage.id], stage=stage)
        elif stage.promise is not None:
            self._rebook(stage, stage.promise)

    def _still_stands(self, booking: Booking, new: Stage | None) -> bool:
        old = booking.stage
        return new is not None and (new.promise, new.estimate, new.time_limit_s, new.pool, new.priority) == (
            booking.promise,
            old.estimate,
            old.time_limit_s,
            old.pool,
            old.priority,
        )

    def _rebook(self, stage: Stage, promise: Promise) -> None:
        """Enter a promise of the record, where it still makes sense; the engine sees to the others."""
        profile = self.profile(stage.pool)
        shape = self.shape(stage)
        way = self.way_of(shape, promise)
        if profile.timetable == "none":
            return
        if way is None:  # a device of it cannot be used: perhaps it can be again later
            self._astray.add(stage.id)
            self.lifted.add(stage.id)
            return
        if promise.start_at <= self.now:
            self.free(one for rank in promise.placement.grants for one in rank)
            self.lifted.add(stage.id)
            return
        end = promise.start_at + self.length_s(stage, way, profile.plan_with)
        self._book(Booking(stage, promise, Option(way, promise.start_at, end, promise.placement)))

    def way_of(self, shape: Shape, promise: Promise) -> Way | None:
        """The way that a promise follows, if all its nodes and devices can still be used."""
        for way in shape.ways:
            if way.alternative.index == promise.placement.alternative and len(promise.placement.nodes) == shape.nodes:
                for node, grants in zip(promise.placement.nodes, promise.placement.grants, strict=True):
                    row = self.fleet.node_row.get(node)
                    line = way.line_of(row) if row is not None else None
                    if line is None:
                        break
                    usable = {int(row) for rows in way.rows for row in rows[line]}
                    if not all(self.fleet.row.get(one.device, -2) in usable for one in grants):
                        break
                else:
                    return way
        return None

    def _least_s(self, stage: Stage) -> float:
        """How long it would run in the fastest way of its shape."""
        fastest = self.shape(stage).fastest
        return self.length_s(stage, fastest, self.profile(stage.pool).plan_with) if fastest else 0.0

    def group(self, stage: Stage) -> tuple[object, ...]:
        """What tells a stage from others as far as admission and fit go."""
        return self.shape(stage), stage.project, stage.user, stage.priority

    def shape(self, stage: Stage) -> Shape:
        """The shape of the stage; stages keep their alternatives alive, so that their identity may serve as a key."""
        mine = self._shape_here.get(id(stage))
        return mine if mine is not None else self._find_shape(stage)

    def _find_shape(self, stage: Stage) -> Shape:
        near = (id(stage.alternatives), stage.pool, stage.nodes, stage.kind, stage.precision)
        if stage.pinned or stage.avoid:
            near = (*near, stage.pinned, stage.avoid)  # type: ignore[assignment]
        if stage.site or stage.within:
            near = (*near, stage.site, stage.within, stage.within_required)  # type: ignore[assignment]
        known = self._shape_of.get(near)
        if known is None or known[0] is not stage.alternatives:
            key = (stage.alternatives, *near[1:])
            found = self._shapes.get(key)
            if found is None:
                profile = self.profile(stage.pool)
                found = self._shapes[key] = shapes.work_out(stage, self.fleet, profile, self.snapshot.speeds)
            known = self._shape_of[near] = (stage.alternatives, found)
        return known[1]

    # -- what the engine does ---------------------------------------------------------------------------------------

    def refresh(self, way: Way, profile: Profile) -> None:
        """Bring up to date where ``way`` fits now and how well."""
        fresh = way.refresh(self.ledger)
        if not len(fresh) or not profile.scores:
            return
        score = np.zeros(len(fresh))
        for policy, weight in profile.scores:
            if hasattr(policy, "scores"):
                score += weight * policy.scores(way, fresh, self)
            else:
                score += weight * np.array([self._score(policy, way, int(i)) for i in fresh])
        way.score[fresh] = np.round(score, 6)

    def _score(self, policy: object, way: Way, line: int) -> float:
        from scheduler.core.match import grant

        place = way.places[line]
        grants = grant(way.alternative.asks, place, self.ledger)
        return 0.0 if grants is None else float(policy.score(place.node, grants, self))  # type: ignore[attr-defined]

    def start(self, stage: Stage, option: Option) -> None:
        """Give ``stage`` its devices now."""
        if stage.id in self.booked:
            self.free(self.unbook(stage.id).option.grants)
        self.ledger.claim(option.grants)
        late = self.now + self.length_s(stage, option.way, "p90")
        self.table.take(stage.id, option.grants, ALWAYS, option.end_at, late)
        self._tentative.append(stage.id)
        self.starts[stage.id] = option
        self.finish[stage.id] = option.end_at
        self.commitments.expect(stage.id, stage.project, self.charge(option.grants), option.end_at)
        self._shares = None
        self._count(stage.project, option.grants, 1)

    def reserve(self, stage: Stage, option: Option, promise: Promise | None = None, *, keeps: bool = False) -> None:
        """Enter ``option`` into the timetable. ``promise`` is the one that it stands for, a new one is made otherwise;
        where it ``keeps`` the promise, that is shown as it was, wherever the entry stands."""
        if promise:
            late_at = promise.late_at
        else:
            slack_s = max(LEAST_SLACK_S, SLACK * (option.start_at - self.now))
            seen_s = lateness.slack_s(self.snapshot.lateness, stage)
            if seen_s is None:
                late_at = max(self.table.late(option.grants, option.start_at, self.now), option.start_at + slack_s)
            else:
                late_at = option.start_at + max(seen_s, slack_s)
        if promise is None or not keeps:
            promise = Promise(
                stage=stage.id,
                start_at=option.start_at,
                end_at=option.end_at,
                late_at=max(late_at, option.start_at),
                placement=option.placement,
                made_at=promise.made_at if promise else self.now,
                yielded_to=promise.yielded_to if promise else self.yielded.get(stage.id, ""),
            )
        self._book(Booking(stage, promise, option))

    def _book(self, booking: Booking) -> None:
        stage, option = booking.stage, booking.option
        late_end = booking.promise.late_at + self.length_s(stage, option.way, "p90")
        self.table.take(stage.id, option.grants, option.start_at, option.end_at, late_end)
        self.booked[stage.id] = booking
        self._rewritten.add(stage.id)
        self.finish[stage.id] = option.end_at
        entries = self.entries.setdefault(stage.pool, {})
        entries[stage.priority] = entries.get(stage.priority, 0) + 1

    def unbook(self, name: str) -> Booking:
        """Take an entry out again."""
        booking = self.booked.pop(name)
        self._rewritten.add(name)
        self.table.drop(name)
        self.finish.pop(name, None)
        self.entries[booking.stage.pool][booking.stage.priority] -= 1
        return booking

    def positions(self, slots: Column) -> Column:
        """Where in the queue each slot of the line stands; ``slots`` are those in the queue in order."""
        if self._positions is None:
            self._positions = np.zeros(len(self.line.priority), dtype=np.int64)
            self._positions[slots] = np.arange(len(slots))
        return self._positions

    def room(self, pool: str, priority: float, profile: Profile) -> bool:
        """Whether the timetable of a pool takes one more entry of this importance."""
        if profile.timetable == "none":
            return False
        entries = self.entries.get(pool)
        if not entries:
            return True
        return sum(count for other, count in entries.items() if other >= priority) < profile.depth

    def evict(self, stage: Stage, eviction: Eviction) -> None:
        """Mark the victims and keep what the preemptor needs of the rest; it starts when they are gone."""
        option = eviction.option
        fenced = tuple(one.device for one in option.grants if self._is_scarce(one))
        sizes = eviction.sizes or (0,) * len(eviction.victims)
        for victim, price, size in zip(eviction.victims, eviction.prices, sizes, strict=True):
            self._note_victim(victim, size, stage, price, eviction.gain, fenced)
            self.doomed.add(victim.id)
            self._expect(victim.project, grants_of(victim), -1)
            self.holders.leave(victim.id)
            self._vacate(victim.id)
            end = self.finish.get(victim.id, option.start_at) if size else option.start_at
            self._occupy(victim, size, option.start_at, end, end)
        self._expect(stage.project, option.grants, 1)
        self.ledger.hold(option.grants)
        self.reserve(stage, option)

    def _note_victim(
        self, victim: Running, size: int, stage: Stage, price: float, gain: float, fenced: tuple[str, ...]
    ) -> None:
        price, gain = round(price, 6), round(gain, 6)
        if size:
            said = (clause("MakesRoom", stage=f"#{stage.number} {stage.name}"),)
            self.resizes.append(
                Resize(victim.id, len(victim.placement.nodes), size, say(said), price, gain, stage.id, fenced, said)
            )
        else:
            self.preempts.append(Preempt(victim.id, stage.id, price, gain, fenced))

    def widen(self, stage: Stage, option: Option, more: tuple[Grant, ...]) -> None:
        """Give ``more`` to a stage that starts in this cycle; ``option`` is all that it gets."""
        self.ledger.claim(more)
        self.table.drop(stage.id)
        late = self.now + self.length_s(stage, option.way, "p90", len(option.placement.nodes))
        self.table.take(stage.id, option.grants, ALWAYS, option.end_at, late)
        self.starts[stage.id] = option
        self.finish[stage.id] = option.end_at
        self.commitments.expect(stage.id, stage.project, self.charge(option.grants), option.end_at)
        self._count(stage.project, more, 1)

    def wake(self, at: float) -> None:
        """Ask for another look then, if that is yet to come."""
        if at > self.now:
            self.wakes.append(at)

    def _is_scarce(self, one: Grant) -> bool:
        """Whether a freed share must be fenced: accelerators always, CPU cores only where too few are free as it is."""
        milli, memory = self.ledger.free(one.device)
        return self.ledger.devices[one.device].kind != "cpu" or milli < one.milli or memory < one.memory_bytes

    def keep_for_turns(self) -> list[Grant]:
        """Take what stands free behind the fences of pools that take turns; gives what must be given back to them."""
        kept = []
        for device, owner in sorted(self.fences.items()):
            if self.takes_turns(self.waiting[owner].pool):
                milli, memory = self.ledger.free(device)
                kept.append(Grant(device, max(0, milli), max(0, memory)))
                self.ledger.close(device)
        return kept

    def close_fences(self) -> None:
        """Take from everybody else what stands free behind a fence."""
        for device, owner in sorted(self.fences.items()):
            if owner in self.starts:
                continue
            milli, memory = self.ledger.free(device)
            if milli > 0 or memory > 0:
                self.ledger.close(device)
                until = self.fence_ends[device]
                self.table.take(f"fence {device}", [Grant(device, milli, memory)], ALWAYS, until, until)
                self._tentative.append(f"fence {device}")

    def _rate(self, stage: Running) -> float:
        row, sort, kinds = self.fleet.row, self.fleet.sort, self.fleet.kinds
        held = [one for one in grants_of(stage) if one.device in row]
        special = [one for one in held if kinds[one.device] != "cpu"] or held
        sorts = {(sort[row[one.device]], one.part.profile if one.part else "") for one in special}
        return min((self._speed(stage.kind, stage.precision, *one) for one in sorts), default=1.0)

    def _speed(self, kind: str, precision: str, sort: int, partition: str) -> float:
        """How fast such stages run on devices of one sort, or on a partition of one."""
        key = (kind, precision, sort, partition)
        known = self._speeds.get(key)
        if known is None:
            device = self.fleet.devices[self.fleet.sort.index(sort)]
            known = self._speeds[key] = speed.speed(kind, precision, device, self.snapshot.speeds, partition)
        return known

    def _expect(self, project: str, grants: tuple[Grant, ...], sign: int) -> None:
        """Count what will be held once an eviction is done, for this cycle."""
        self._count(project, grants, sign)
        self._expected.append((project, grants, sign))

    def _count(self, project: str, grants: Iterable[Grant], sign: int) -> None:
        self.held.count(project, grants, self.ledger.devices, sign)


def _differences(before: Mapping[str, T], now: Iterable[T]) -> dict[str, T | None]:
    """What came, went or became another object, by id; ``None`` for what went."""
    here = {one.id: one for one in now}
    found: dict[str, T | None] = {name: None for name in before if name not in here}
    found.update((name, one) for name, one in here.items() if before.get(name) is not one)
    return found


def _charge_of(shape: Shape, fleet: Fleet) -> float:
    """What a second of a stage of this shape counts in the use of its project, where it is fastest."""
    way = shape.fastest
    if way is None:
        return 0.0
    rows = [int(rows[rows >= 0][0]) for rows in way.rows]
    each = [fleet.charge[row] * ask.count * ask.milli for ask, row in zip(way.alternative.asks, rows, strict=True)]
    return float(sum(each)) * shape.nodes / 1000


def grants_of(stage: Running) -> tuple[Grant, ...]:
    """What a running stage holds, over all its ranks."""
    ranks = stage.placement.grants
    return ranks[0] if len(ranks) == 1 else tuple(one for rank in ranks for one in rank)


def _profile_of(profiles: Profile | Mapping[str, Profile], pool: str) -> Profile | None:
    return profiles if isinstance(profiles, Profile) else profiles.get(pool)
