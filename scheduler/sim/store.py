"""The record in memory: a Store for the simulator, under the same lifecycle table as the live one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.core.lifecycle import ACTIVE, Event, Health, NodeState, State, next_state
from scheduler.core.ports import Applied
from scheduler.core.retry import Verdict
from scheduler.core.types import Node, Placement, Plan, Pool, Project, Promise, Quota, Running, Snapshot, Stage, Start

FENCE_S = 120.0


@dataclass(slots=True)
class Entry:
    """A stage and what became of it so far. Times of things that have not happened are ``None``."""

    stage: Stage
    state: State
    needs: set[str]
    epoch: int = 0
    running: Running | None = None
    promised: Promise | None = None
    started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    attempts: int = 0
    busy_device_s: float = 0.0
    lost_device_s: float = 0.0


class MemoryStore:
    """What is true in a simulated world. ``move`` is the only writer of a state."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        pools: tuple[Pool, ...] = (Pool("default"),),
        quotas: tuple[Quota, ...] = (),
        weights: dict[str, float] | None = None,
        speeds: dict[tuple[str, str], float] | None = None,
        half_life_s: float = 7 * 86_400.0,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.nodes = {node.id: node for node in nodes}
        self.devices = {device.id: device for node in nodes for device in node.devices}
        self.free = {device.id: [device.capacity_milli, device.memory_bytes] for device in self.devices.values()}
        self.speeds = speeds or {}
        self._pools, self._quotas, self._weights = pools, quotas, weights or {}
        self._half_life_s = half_life_s
        self._used: dict[str, float] = {}
        self._charged_at = 0.0
        self._fences: dict[str, tuple[str, float]] = {}
        self._waiting: dict[str, Stage] = {}
        self._running: dict[str, Running] = {}
        self._needed_by: dict[str, list[str]] = {}

    # -- the engine's side ------------------------------------------------------------------------------------------

    def load(self, now: float) -> Snapshot:
        self._charge(now)
        self._fences = {device: one for device, one in self._fences.items() if one[1] > now and one[0] in self._waiting}
        projects = sorted(set(self._used) | set(self._weights))
        return Snapshot(
            nodes=tuple(self._with_fences(node) for node in self.nodes.values()),
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            projects=tuple(Project(name, self._weights.get(name, 1.0), self._used.get(name, 0.0)) for name in projects),
            quotas=self._quotas,
            pools=self._pools,
            speeds=self.speeds,
        )

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        started, evicted, skipped = [], [], []
        for start in plan.starts:
            entry = self.entries[start.stage]
            if entry.state is State.PENDING and self._take(start.placement):
                self._begin(entry, start, now)
                started.append(start.stage)
            else:
                skipped.append(start.stage)
        for one in plan.preempts:
            entry = self.entries[one.victim]
            if entry.state in ACTIVE - {State.STOPPING} and entry.running is not None and one.stage in self._waiting:
                self.move(entry, Event.STOP)
                stop_by = now + entry.running.grace_s
                self._set(entry, replace(entry.running, state=entry.state, evicted_for=one.stage, stop_by_at=stop_by))
                self._fences.update(dict.fromkeys(one.devices, (one.stage, stop_by + FENCE_S)))
                evicted.append(one.victim)
        for wait in plan.waits:
            stage = self._waiting.get(wait.stage)
            if stage is not None and stage.promise != wait.planned:
                entry = self.entries[wait.stage]
                entry.promised = entry.promised or wait.planned
                self._wait(entry, replace(stage, promise=wait.planned))
        return Applied(tuple(started), tuple(evicted), tuple(skipped))

    # -- the world's side -------------------------------------------------------------------------------------------

    def submit(self, stage: Stage) -> Entry:
        """Put a stage in the queue; what it needs that has completed already is met."""
        needs = {need for need in stage.unmet if self.entries[need].state is not State.COMPLETED}
        entry = self.entries[stage.id] = Entry(stage, State.PENDING, needs)
        for need in sorted(needs):
            self._needed_by.setdefault(need, []).append(stage.id)
        self._wait(entry, replace(stage, unmet=tuple(sorted(needs))))
        for need in sorted(needs):
            if self.entries[need].state in (State.FAILED, State.CANCELLED):
                self._fail_from(entry, stage.submitted_at)
                break
        return entry

    def refuse(self, stage: Stage, now: float) -> Entry:
        """Record a stage that can never run; it ends where it began."""
        entry = self.submit(stage)
        if entry.state is State.PENDING:
            self._fail_from(entry, now)
        return entry

    def began(self, stage_id: str) -> None:
        """The stage's process runs."""
        entry = self.entries[stage_id]
        if entry.running is not None and entry.state is State.STARTING:
            self.move(entry, Event.START)
            self._set(entry, replace(entry.running, state=entry.state))

    def complete(self, stage_id: str, now: float) -> None:
        """The stage ended well; those that need it may go on."""
        entry = self.entries[stage_id]
        self._give_back(entry, now)
        self.move(entry, Event.COMPLETE)
        entry.ended_at = now
        for name in self._needed_by.pop(stage_id, ()):
            other = self.entries[name]
            other.needs.discard(stage_id)
            if name in self._waiting:
                eligible = other.stage.eligible_at if other.needs else now
                still = replace(self._waiting[name], unmet=tuple(sorted(other.needs)), eligible_at=eligible)
                self._wait(other, still)

    def end(self, stage_id: str, verdict: Verdict, now: float, remaining: Stage) -> None:
        """An attempt ended otherwise; ``remaining`` is the stage as it would be queued again."""
        entry = self.entries[stage_id]
        self._give_back(entry, now)
        self.move(entry, verdict.event)
        if entry.state is State.PENDING:
            retry_at = now + verdict.backoff_s if verdict.backoff_s else None
            self._wait(entry, replace(remaining, retry_at=retry_at, promise=None, attempts=entry.attempts))
        else:
            entry.ended_at = now
            self._fail_dependents(stage_id, now)

    def node(self, node_id: str, state: NodeState) -> None:
        """Set the state of a node."""
        self.nodes[node_id] = replace(self.nodes[node_id], state=state)

    def health(self, device_id: str, health: Health) -> None:
        """Set the health of a device."""
        node = self.nodes[self.devices[device_id].node]
        devices = tuple(replace(one, health=health) if one.id == device_id else one for one in node.devices)
        self.nodes[node.id] = replace(node, devices=devices)

    def move(self, entry: Entry, event: Event) -> None:
        """Write the state that follows ``event``; raises IllegalTransition."""
        entry.state = next_state(entry.state, event)

    def running_on(self, node_id: str) -> list[str]:
        return sorted(name for name, one in self._running.items() if node_id in one.placement.nodes)

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def checkpointed(self, stage_id: str, at: float) -> None:
        """The stage confirmed a checkpoint."""
        entry = self.entries[stage_id]
        if entry.running is not None:
            self._set(entry, replace(entry.running, checkpoint_at=at, checkpoints=True))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, entry: Entry, start: Start, now: float) -> None:
        stage = self._waiting.pop(start.stage)
        self.move(entry, Event.PLACE)
        entry.epoch += 1
        entry.attempts += 1
        entry.started_at = entry.started_at if entry.started_at is not None else now
        self._set(
            entry,
            Running(
                id=stage.id,
                job=stage.job,
                number=stage.number,
                name=stage.name,
                project=stage.project,
                user=stage.user,
                pool=stage.pool,
                kind=stage.kind,
                priority=stage.priority,
                state=entry.state,
                attempt=f"{stage.id}.{entry.epoch}",
                placement=start.placement,
                started_at=now,
                estimate=stage.estimate,
                priority_class=stage.priority_class,
                precision=stage.precision,
                preemptible=stage.preemptible,
                time_limit_s=stage.time_limit_s,
                preemptions=entry.preemptions,
            ),
        )

    def _wait(self, entry: Entry, stage: Stage) -> None:
        entry.stage = self._waiting[stage.id] = stage

    def _set(self, entry: Entry, running: Running) -> None:
        entry.running = self._running[running.id] = running

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

    def _give_back(self, entry: Entry, now: float) -> None:
        running = self._running.pop(entry.stage.id)
        self._charge(now)
        entry.running = None
        for rank in running.placement.grants:
            for one in rank:
                self.free[one.device][0] += one.milli
                self.free[one.device][1] += one.memory_bytes
        entry.busy_device_s += self.width(running) * (now - running.started_at)

    def width(self, running: Running) -> float:
        """How many accelerators a stage holds."""
        grants = [one for rank in running.placement.grants for one in rank]
        return sum(one.milli for one in grants if self.devices[one.device].kind != "cpu") / 1000

    def _charge(self, now: float) -> None:
        """Bring each project's decayed use up to now."""
        span = now - self._charged_at
        if span <= 0:
            return
        fade = 2.0 ** (-span / self._half_life_s)
        self._used = {name: used * fade for name, used in self._used.items()}
        for one in self._running.values():
            self._used[one.project] = self._used.get(one.project, 0.0) + self.width(one) * min(
                span, now - one.started_at
            )
        self._charged_at = now

    def _fail_from(self, entry: Entry, now: float) -> None:
        self._waiting.pop(entry.stage.id, None)
        self.move(entry, Event.FAIL)
        entry.ended_at = now
        self._fail_dependents(entry.stage.id, now)

    def _fail_dependents(self, stage_id: str, now: float) -> None:
        for name in self._needed_by.pop(stage_id, ()):
            if self.entries[name].state is State.PENDING:
                self._fail_from(self.entries[name], now)

    def _with_fences(self, node: Node) -> Node:
        if not any(device.id in self._fences for device in node.devices):
            return node
        devices = tuple(
            replace(device, fenced_for=self._fences[device.id][0]) if device.id in self._fences else device
            for device in node.devices
        )
        return replace(node, devices=devices)
