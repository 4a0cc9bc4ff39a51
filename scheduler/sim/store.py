"""The store in memory for the simulator, with the same lifecycle table as the live one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.core.explain.announced import of_promise
from scheduler.core.model import fences
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.lifecycle import ACTIVE, Health, NodeState, StageEvent, State, next_state
from scheduler.core.model.retry import RetryVerdict
from scheduler.core.model.types import (
    Estimate,
    Expected,
    News,
    Node,
    Placement,
    Plan,
    Pool,
    Project,
    Promise,
    Quota,
    Resize,
    Running,
    Snapshot,
    Stage,
    Start,
    Stop,
)
from scheduler.core.planning.cycles import in_circles
from scheduler.core.ports import Applied
from scheduler.core.resources.charges import charge
from scheduler.core.resources.elastic import hastened
from scheduler.core.resources.usage import HALF_LIFE_S, Usage
from scheduler.core.world import price
from scheduler.core.world.lateness import promise_class
from scheduler.core.world.service import as_running
from scheduler.predict.lateness import Lateness
from scheduler.predict.starts import Starts


@dataclass(slots=True)
class StageRecord:
    """A stage and its history so far. Times of events that have not happened are ``None``."""

    stage: Stage
    state: State
    needs: set[str]
    epoch: int = 0
    running: Running | None = None
    promised: Promise | None = None
    announced: Expected | None = None
    started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    gave_back_at: tuple[float, ...] = ()
    attempts: int = 0
    busy_device_s: float = 0.0
    lost_device_s: float = 0.0


class MemoryStore:
    """The state of a simulated world. ``move`` is the only writer of a stage's state."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        pools: tuple[Pool, ...] = (Pool("default"),),
        quotas: tuple[Quota, ...] = (),
        weights: dict[str, float] | None = None,
        speeds: dict[tuple[str, str], float] | None = None,
        half_life_s: float = HALF_LIFE_S,
        saves_on_stop: bool = False,
    ) -> None:
        self.saves_on_stop = saves_on_stop
        self.entries: dict[str, StageRecord] = {}
        self.nodes = {node.id: node for node in nodes}
        self.devices = {device.id: device for node in nodes for device in node.devices}
        self.free = {device.id: [device.capacity_milli, device.memory_bytes] for device in self.devices.values()}
        self.speeds = speeds or {}
        # For worlds that learn from the outcome of promises.
        self.lateness: Lateness | None = None
        self.starts: Starts | None = None
        self._pools, self._quotas, self._weights = pools, quotas, weights or {}
        self._half_life_s = half_life_s
        self._usage: dict[str, Usage] = {}
        self._seen: tuple[Node, ...] = ()
        self._seen_fences: dict[str, tuple[str, float]] = {}
        self._told: dict[str, Node] = {}
        self._fences: dict[str, tuple[str, float]] = {}
        self._stops: dict[str, set[str]] = {}
        self._circles: frozenset[str] = frozenset()
        self._fenced: dict[str, tuple[Node, tuple[tuple[str | None, float | None], ...], Node]] = {}
        self._waiting: dict[str, Stage] = {}
        self._running: dict[str, Running] = {}
        self._arrived: dict[str, Stage | None] = {}
        self._began: dict[str, Running | None] = {}
        self._news = News(0)
        self._needed_by: dict[str, list[str]] = {}

    # -- called by the engine -----------------------------------------------------------------------------------------

    def load(self, now: float) -> Snapshot:
        self._fences = {device: one for device, one in self._fences.items() if one[1] > now and one[0] in self._waiting}
        before, nodes = self._seen, self._nodes()
        changed = () if nodes is before else (one for one in nodes if self._told.get(one.id) is not one)
        self._news = News(self._news.serial + 1, self._arrived, self._began, {one.id: one for one in changed})
        self._arrived, self._began = {}, {}
        self._told.update((one.id, one) for one in self._news.nodes.values() if one)
        used = {name: account.at(now) for name, account in self._usage.items()}
        projects = sorted(set(self._usage) | set(self._weights))
        return Snapshot(
            nodes=nodes,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            projects=tuple(Project(name, self._weights.get(name, 1.0), used.get(name, 0.0)) for name in projects),
            quotas=self._quotas,
            pools=self._pools,
            speeds=self.speeds,
            lateness=self.lateness.slack(now) if self.lateness else {},
            announced=self.starts.known(now) if self.starts else {},
        )

    def news(self) -> News:
        """Return what changed between the last two calls of :meth:`load`."""
        return self._news

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        started, skipped = [], []
        for start in plan.starts:
            entry = self.entries[start.stage]
            if entry.state is State.PENDING and self._take(start.placement):
                self._begin(entry, start, now)
                started.append(start.stage)
            else:
                skipped.append(start.stage)
        stopped = [stop.victim for stop in plan.stops if self._stop(stop, now)]
        for wait in plan.waits:
            stage = self._waiting.get(wait.stage)
            if stage is not None and stage.promise != wait.planned:
                entry = self.entries[wait.stage]
                if entry.promised is None and wait.planned is not None:
                    entry.promised = wait.planned
                    if self.lateness:
                        promised = wait.planned
                        self.lateness.promised(stage.id, promise_class(stage), promised.start_at, promised.late_at)
                    if self.starts:
                        entry.announced = of_promise(snapshot.announced, stage, wait.planned)
                        self.starts.announce(stage, entry.announced)
                self._wait(entry, replace(stage, promise=wait.planned))
        if self.lateness:
            self.lateness.began(started, now)
        if self.starts:
            self.starts.began(started, now)
        return Applied(tuple(started), tuple(stopped), tuple(skipped))

    def _remember(self, victim: str, winner: str) -> None:
        """Record that a stage was stopped for another. Only if the winner was stopped before can that close a
        circle."""
        self._stops.setdefault(victim, set()).add(winner)
        if winner in self._stops:
            self._circles = in_circles((one, other) for one, others in self._stops.items() for other in others)

    def _stop(self, stop: Stop, now: float) -> bool:
        """Ask a running stage to stop, for another if one is named and both are there; return whether it was asked."""
        entry, whom = self.entries[stop.victim], stop.stage or None
        known = whom is None or whom in self._waiting or whom in self._running
        if entry.state not in ACTIVE - {State.STOPPING} or entry.running is None or not known:
            return False
        self.move(entry, StageEvent.STOP)
        stop_by = now + entry.running.grace_s
        keeps = min(stop.was, stop.size) if isinstance(stop, Resize) else 0
        told = replace(entry.running, state=entry.state, evicted_for=whom, stop_by_at=stop_by, keeps=keeps)
        self._set(entry, told)
        if whom is not None:
            self._fence(stop.devices, whom, now)
            if isinstance(stop, Resize):
                entry.gave_back_at += (now,)
            else:
                self._remember(stop.victim, whom)
        return True

    def _fence(self, devices: Iterable[str], whom: str, now: float) -> None:
        """Fence these devices, and those fenced for the same stage before, until the last stage that stops for it has
        ended."""
        stopping = (one.stop_by_at for one in self._running.values() if one.evicted_for == whom)
        until = fences.until(now, (at for at in stopping if at is not None))
        own = {device for device, (owner, _) in self._fences.items() if owner == whom}
        self._fences.update(dict.fromkeys([*sorted(own), *devices], (whom, until)))

    def swap(self, starts: Iterable[Start], now: float) -> list[str]:
        """Start the swaps of a plan whose victims have ended already; return the stages that started."""
        began = []
        for start in starts:
            entry = self.entries[start.stage]
            if entry.state is State.PENDING and start.stage in self._waiting and self._take(start.placement):
                self._begin(entry, start, now)
                began.append(start.stage)
        return began

    # -- called by the world ------------------------------------------------------------------------------------------

    def submit(self, stage: Stage) -> StageRecord:
        """Put a stage in the queue; dependencies that have completed already are met."""
        needs = {need for need in stage.unmet if self.entries[need].state is not State.COMPLETED}
        entry = self.entries[stage.id] = StageRecord(stage, State.PENDING, needs)
        for need in sorted(needs):
            self._needed_by.setdefault(need, []).append(stage.id)
        self._wait(entry, replace(stage, unmet=tuple(sorted(needs))))
        for need in sorted(needs):
            if self.entries[need].state in (State.FAILED, State.CANCELLED):
                self._fail_from(entry, stage.submitted_at)
                break
        return entry

    def refuse(self, stage: Stage, now: float) -> StageRecord:
        """Record a stage that can never run; it ends at its submission."""
        entry = self.submit(stage)
        if entry.state is State.PENDING:
            self._fail_from(entry, now)
        return entry

    def foresee(self, stage_id: str, estimate: Estimate) -> None:
        """Set a new estimate of a waiting stage if it differs by at least a tenth."""
        stage = self._waiting.get(stage_id)
        if stage is None:
            return
        was = stage.estimate
        if abs(estimate.p50_s - was.p50_s) > 0.1 * was.p50_s or abs(estimate.p90_s - was.p90_s) > 0.1 * was.p90_s:
            self._wait(self.entries[stage_id], replace(stage, estimate=estimate))

    def began(self, stage_id: str) -> None:
        """Record that the stage's process runs."""
        entry = self.entries[stage_id]
        if entry.running is not None and entry.state is State.STARTING:
            self.move(entry, StageEvent.START)
            self._set(entry, replace(entry.running, state=entry.state))

    def complete(self, stage_id: str, now: float) -> None:
        """Record that the stage completed; its dependents may start."""
        entry = self.entries[stage_id]
        self._release(entry, now)
        self.move(entry, StageEvent.COMPLETE)
        entry.ended_at = now
        for name in self._needed_by.pop(stage_id, ()):
            other = self.entries[name]
            other.needs.discard(stage_id)
            if name in self._waiting:
                eligible = other.stage.eligible_at if other.needs else now
                still = replace(self._waiting[name], unmet=tuple(sorted(other.needs)), eligible_at=eligible)
                self._wait(other, still)

    def recount(self, stage_id: str, done_s: float, now: float, *, overhead_counts: bool = True) -> None:
        """Count the service of a running stage until now; it worked for ``done_s`` (at speed 1) since the last count.
        The rest of the time was overhead, which may count as service or not."""
        entry = self.entries[stage_id]
        running = entry.running
        if running is None:
            return
        received_s, attained = self.service(running, now)
        if not overhead_counts:
            attained = running.attained_device_s + self.width(running) * done_s
        truth_s = None if running.truth_s is None else max(running.truth_s - done_s, 0.0)
        self._set(
            entry,
            replace(
                running,
                estimate=running.estimate.without(done_s),
                received_s=received_s,
                attained_device_s=attained,
                truth_s=truth_s,
                counted_at=now,
            ),
        )

    def service(self, running: Running, now: float) -> tuple[tuple[tuple[str, float], ...], float]:
        """Return the service of a running stage so far: seconds by device model, and total device-seconds."""
        devices = [self.devices[one.device] for rank in running.placement.grants for one in rank]
        model = next((one.model for one in devices if is_accelerator(one.kind)), devices[0].model)
        since_s = now - (running.started_at if running.counted_at is None else running.counted_at)
        received = dict(running.received_s)
        received[model] = received.get(model, 0.0) + since_s
        width = self.width(running) or price.width(running)
        return tuple(sorted(received.items())), running.attained_device_s + width * since_s

    def end(self, stage_id: str, verdict: RetryVerdict, now: float, remaining: Stage) -> None:
        """Record that an attempt ended without completion; ``remaining`` is the stage as it is queued again."""
        entry = self.entries[stage_id]
        if entry.running is not None:
            received_s, attained = self.service(entry.running, now)
            remaining = replace(remaining, received_s=received_s, attained_device_s=attained, stopped_at=now)
        self._release(entry, now)
        self.move(entry, verdict.event)
        if entry.state is State.PENDING:
            retry_at = now + verdict.backoff_s if verdict.backoff_s else None
            self._wait(entry, replace(remaining, retry_at=retry_at, promise=None, attempts=entry.attempts))
        else:
            entry.ended_at = now
            self._fail_dependents(stage_id, now)

    def node(self, node_id: str, state: NodeState) -> None:
        """Set the state of a node."""
        self._put(replace(self.nodes[node_id], state=state))

    def health(self, device_id: str, health: Health) -> None:
        """Set the health of a device."""
        node = self.nodes[self.devices[device_id].node]
        devices = tuple(replace(one, health=health) if one.id == device_id else one for one in node.devices)
        self._put(replace(node, devices=devices))

    def load_of(self, node_id: str, load: float) -> None:
        """Set the load of a node."""
        self._put(replace(self.nodes[node_id], load=load))

    def move(self, entry: StageRecord, event: StageEvent) -> None:
        """Write the state that follows ``event``; raises IllegalTransition."""
        entry.state = next_state(entry.state, event)

    def running_on(self, node_id: str) -> list[str]:
        return sorted(name for name, one in self._running.items() if node_id in one.placement.nodes)

    def running(self) -> list[tuple[str, Running]]:
        """All stages that hold devices."""
        return list(self._running.items())

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def checkpointed(self, stage_id: str, at: float) -> None:
        """The stage confirmed a checkpoint."""
        entry = self.entries[stage_id]
        if entry.running is not None:
            self._set(entry, replace(entry.running, checkpoint_at=at, checkpoints=True))

    # -- internal -----------------------------------------------------------------------------------------------------

    def _begin(self, entry: StageRecord, start: Start, now: float) -> None:
        stage = self._waiting.pop(start.stage)
        self._arrived[start.stage] = None
        self.move(entry, StageEvent.PLACE)
        entry.epoch += 1
        entry.attempts += 1
        entry.started_at = entry.started_at if entry.started_at is not None else now
        self._set(
            entry,
            replace(
                as_running(
                    stage,
                    start.placement,
                    now,
                    state=entry.state,
                    attempt=f"{stage.id}.{entry.epoch}",
                    estimate=hastened(stage.estimate, stage.nodes, len(start.placement.nodes), stage.scaling),
                ),
                preemptions=entry.preemptions,
                in_circle=stage.id in self._circles,
                submitted_at=stage.submitted_at,
                alternatives=stage.alternatives,
                attained_device_s=stage.attained_device_s,
                received_s=stage.received_s,
                truth_s=stage.truth_s,
                deadline_at=stage.deadline_at,
                saves_on_stop=self.saves_on_stop,
                least_nodes=stage.nodes if stage.most_nodes else 0,
                most_nodes=stage.most_nodes,
                pinned=stage.pinned,
                scaling=stage.scaling,
                gave_back_at=entry.gave_back_at,
            ),
        )
        running = entry.running
        assert running is not None, "it was just set"
        self._hold(running, 1, now)

    def _wait(self, entry: StageRecord, stage: Stage) -> None:
        entry.stage = self._waiting[stage.id] = self._arrived[stage.id] = stage

    def _nodes(self) -> tuple[Node, ...]:
        """Return all nodes; the same object as long as nothing about them changes."""
        if self._fences != self._seen_fences or not self._seen:
            fenced = {self.devices[device].node for device in self._fences}
            self._seen = tuple(self._with_fences(one) if name in fenced else one for name, one in self.nodes.items())
            self._seen_fences = dict(self._fences)
        return self._seen

    def _put(self, node: Node) -> None:
        self.nodes[node.id], self._seen = node, ()

    def _set(self, entry: StageRecord, running: Running) -> None:
        entry.running = self._running[running.id] = self._began[running.id] = running

    def _take(self, placement: Placement) -> bool:
        """Claim the whole gang, or nothing."""
        if any(self.nodes[node].state is not NodeState.READY for node in placement.nodes):
            return False
        grants = [one for rank in placement.grants for one in rank]
        for done, one in enumerate(grants):
            free = self.free[one.device]
            if free[0] < one.milli or free[1] < one.memory_bytes:
                for back in grants[:done]:
                    self.free[back.device][0] += back.milli
                    self.free[back.device][1] += back.memory_bytes
                return False
            free[0] -= one.milli
            free[1] -= one.memory_bytes
        return True

    def _release(self, entry: StageRecord, now: float) -> None:
        running = self._running.pop(entry.stage.id)
        self._began[running.id] = None
        self._hold(running, -1, now)
        entry.running = None
        for rank in running.placement.grants:
            for one in rank:
                self.free[one.device][0] += one.milli
                self.free[one.device][1] += one.memory_bytes
        width = self.width(running)
        entry.busy_device_s += width * (now - running.started_at)

    def width(self, running: Running) -> float:
        """Return how many accelerators a stage holds."""
        grants = [one for rank in running.placement.grants for one in rank]
        return sum(one.milli for one in grants if is_accelerator(self.devices[one.device].kind)) / 1000

    def _held(self, running: Running) -> float:
        """Return what a second of a stage adds to the use of its project."""
        grants = (one for rank in running.placement.grants for one in rank)
        return sum(charge(self.devices[one.device]) * one.milli for one in grants) / 1000

    def _hold(self, running: Running, sign: int, now: float) -> None:
        account = self._usage.get(running.project, Usage(as_of=now, half_life_s=self._half_life_s))
        self._usage[running.project] = account.changed(now, sign * self._held(running))

    def _fail_from(self, entry: StageRecord, now: float) -> None:
        if self._waiting.pop(entry.stage.id, None) is not None:
            self._arrived[entry.stage.id] = None
        self.move(entry, StageEvent.FAIL)
        entry.ended_at = now
        self._fail_dependents(entry.stage.id, now)

    def _fail_dependents(self, stage_id: str, now: float) -> None:
        for name in self._needed_by.pop(stage_id, ()):
            if self.entries[name].state is State.PENDING:
                self._fail_from(self.entries[name], now)

    def _with_fences(self, node: Node) -> Node:
        """Return the node with its fences; the same object as long as both are unchanged."""
        owners = tuple(self._fences.get(one.id, (None, None)) for one in node.devices)
        known = self._fenced.get(node.id)
        if known is None or known[0] is not node or known[1] != owners:
            devices = tuple(
                one if owner is None else replace(one, fenced_for=owner, fenced_until=until)
                for one, (owner, until) in zip(node.devices, owners, strict=True)
            )
            known = self._fenced[node.id] = (node, owners, replace(node, devices=devices))
        return known[2]
