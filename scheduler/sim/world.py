"""A simulated world: an event heap around the same engine and lifecycle table as the live one.

Time is the time of the next event; randomness comes from the seed alone, so a world can be repeated.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from scheduler.core.matching.feasible import never_fits
from scheduler.core.model import retry
from scheduler.core.model.basis import Basis
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.lifecycle import Cause, NodeState, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Alternative, Ask, Estimate, Node, Pool, Quota, Running, Stage
from scheduler.core.planning import cycle
from scheduler.core.planning.engine import Planner
from scheduler.core.resources import speed
from scheduler.core.resources.elastic import faster
from scheduler.predict import saving
from scheduler.sim.store import MemoryStore, StageRecord
from scheduler.sim.traces import Arrival

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Chance:
    """Deviations from the plan. ``error`` is the spread of predictions (sigma of a lognormal factor; 0 is exact);
    ``node_mtbf_s`` the mean time between failures of one node; ``checkpoint_s`` the checkpoint interval of stages (0:
    never), and ``save_s`` how long a save takes that is asked for ahead of a planned stop (0: nobody answers). With
    ``saves_on_stop`` a stage that is asked to stop saves its work first; with a ``stop_s`` of 0 it ends at once, and
    the stage that gets its devices starts in the same moment."""

    error: float = 0.0
    node_mtbf_s: float = 0.0
    repair_s: float = 3_600.0
    checkpoint_s: float = 0.0
    save_s: float = 30.0
    stop_s: float = 10.0
    saves_on_stop: bool = False


@dataclass(frozen=True, slots=True)
class Lived:
    """The result of a world: all stages, its begin and end, the number of cycles, and its accelerators."""

    entries: tuple[StageRecord, ...]
    began_at: float
    ended_at: float
    cycles: int
    devices: int


class SimulatedWorld:
    """One simulated cluster with its arrivals. ``every_s`` is the cycle interval: 0 runs one after every event."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        arrivals: Iterable[Arrival],
        profile: Profile,
        *,
        seed: int = 0,
        chance: Chance | None = None,
        quotas: tuple[Quota, ...] = (),
        weights: dict[str, float] | None = None,
        speeds: dict[tuple[str, str], float] | None = None,
        every_s: float = 0.0,
    ) -> None:
        self.chance = chance or Chance()
        self.store = MemoryStore(nodes, (Pool("default", profile.name),), quotas, weights, speeds)
        self.store.saves_on_stop = self.chance.saves_on_stop
        self.now = 0.0
        # Called at the end of every attempt: witness(running, now, done=whether its work is).
        self.witness: Callable[..., None] | None = None
        self._profile, self._every_s = profile, every_s
        self._planner = Planner()
        self._possible: dict[object, bool] = {}
        self._dice = random.Random(seed)
        self._true_s: dict[str, float] = {}
        self._saved_s: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._wake_at = math.inf
        self._cycles = 0
        self._over = False
        self._arrivals = sorted(arrivals, key=lambda one: (one.submit_s, one.id))
        for number, one in enumerate(self._arrivals):
            stage = self._stage(number + 1, one)
            self.at(one.submit_s, partial(self._arrive, stage))
        self._pending = len(self._arrivals)
        if self.chance.node_mtbf_s > 0:
            for node in sorted(self.store.nodes):
                self._fail_later(node)

    def at(self, when: float, happen: Callable[[], None]) -> None:
        """Schedule an event at ``when``; events of the same time happen in the order of these calls."""
        heapq.heappush(self._heap, (when, next(self._ticket), happen))

    def stop(self) -> None:
        """End the simulation now."""
        self._over = True

    def run(self, progress: Callable[[int, int], None] | None = None, until: float = math.inf) -> Lived:
        """Run until nothing is left to do. ``progress`` is called with the numbers of ended and of all stages."""
        total, last_cycle = len(self._arrivals), -math.inf
        while self._heap and self._heap[0][0] <= until and (self._pending or self.store.unfinished) and not self._over:
            self.now = self._heap[0][0]
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            if self.now - last_cycle >= self._every_s:
                self._cycle()
                last_cycle = self.now
            elif self._wake_at > last_cycle + self._every_s:
                self._wake(last_cycle + self._every_s)
            if progress and self._cycles % 256 == 0:
                progress(total - self._pending - self.store.unfinished, total)
        if progress:
            progress(total - self._pending - self.store.unfinished, total)
        entries = tuple(self.store.entries[name] for name in sorted(self.store.entries))
        began_at = self._arrivals[0].submit_s if self._arrivals else 0.0
        ends = [entry.ended_at for entry in entries if entry.ended_at is not None]
        devices = sum(is_accelerator(device.kind) for device in self.store.devices.values())
        return Lived(entries, began_at, max(ends, default=began_at), self._cycles, devices)

    # -- events -------------------------------------------------------------------------------------------------------

    def _cycle(self) -> None:
        if self.chance.checkpoint_s > 0:
            self._confirm_checkpoints()
        self._wake_at = math.inf
        done = cycle.run(self.store, lambda _: self._profile, self.now, self._planner)
        self._cycles += 1
        for name in done.applied.started:
            self._begin(name)
        why = {stop.victim: stop.cause for stop in done.plan.stops}
        for name, cause in [(name, why[name]) for name in done.applied.stopped]:
            entry = self.store.entries[name]
            if self.chance.stop_s > 0:
                self.at(self.now + self.chance.stop_s, partial(self._end, name, entry.epoch, cause))
            else:
                self._end(name, entry.epoch, cause)
        if self.chance.stop_s <= 0:
            for name in self.store.swap(done.plan.swaps, self.now):
                self._begin(name)
        if done.plan.wake_at is not None:
            self._wake(done.plan.wake_at)

    def _begin(self, name: str) -> None:
        """Start the stage's process."""
        entry = self.store.entries[name]
        if entry.running is None:
            return
        self.store.began(name)
        run_s = self._left_s(name) / self._rate(entry.running)
        limit = entry.running.time_limit_s
        if limit is not None and run_s > limit:
            self.at(self.now + limit, partial(self._end, name, entry.epoch, Cause.TIMEOUT))
        else:
            self.at(self.now + run_s, partial(self._complete, name, entry.epoch))

    def _left_s(self, name: str) -> float:
        """Return the true remaining work of a stage at the start of an attempt, in seconds on a device of speed 1."""
        return max(self._true_s[name] - self._saved_s.get(name, 0.0), 0.0)

    def _wake(self, when: float) -> None:
        if when < self._wake_at:
            self._wake_at = when
            self.at(when, lambda: None)

    def _arrive(self, stage: Stage) -> None:
        self._pending -= 1
        asked = (stage.alternatives, stage.nodes, stage.pinned, stage.avoid, stage.only, stage.site, stage.mounts)
        possible = self._possible.get(asked)
        if possible is None:
            possible = self._possible[asked] = never_fits(stage, self.store.load(self.now)) is None
        if possible:
            self.store.submit(stage)
        else:
            self.store.refuse(stage, self.now)

    def _complete(self, name: str, epoch: int) -> None:
        entry = self.store.entries[name]
        if entry.epoch == epoch and entry.running is not None:
            if self.witness:
                self.witness(entry.running, self.now, done=True)
            self.store.complete(name, self.now)

    def _end(self, name: str, epoch: int, cause: Cause) -> None:
        """End an attempt before its work is done: saved work is kept, the rest is lost."""
        entry = self.store.entries[name]
        if entry.epoch != epoch or entry.running is None:
            return
        if self.witness:
            self.witness(entry.running, self.now, done=False)
        done_s, lost_s = self._kept(entry.running, cause)
        self._saved_s[name] = self._saved_s.get(name, 0.0) + done_s
        entry.lost_device_s += lost_s * self.store.width(entry.running)
        if cause is Cause.PREEMPTED:
            entry.preemptions += 1
        # In pools with time sharing a stage gets no longer wait for having been displaced more often.
        times = entry.preemptions if self._profile.rotates == "none" else 0
        verdict = retry.decide(cause, entry.attempts, 1, preemptions=times, on_node_lost="requeue", backoff_s=10.0)
        left = entry.stage.estimate.without(done_s)
        self.store.end(name, verdict, self.now, replace(entry.stage, estimate=left, truth_s=self._left_s(name)))
        if verdict.backoff_s:
            self.at(self.now + verdict.backoff_s, lambda: None)

    def _kept(self, running: Running, cause: Cause) -> tuple[float, float]:
        """Return how much work an attempt that ends now keeps (in seconds of speed 1), and how many seconds are lost:
        those since the last checkpoint, or none if it had the time to save."""
        ran_s = self.now - running.started_at
        interval = self.chance.checkpoint_s
        kept_s = math.floor(ran_s / interval) * interval if interval > 0 else 0.0
        if running.checkpoint_at is not None:  # one that was asked for ahead of a planned stop
            kept_s = max(kept_s, running.checkpoint_at - running.started_at)
        if cause in (Cause.PREEMPTED, Cause.RESIZE, Cause.MOVE) and self.chance.saves_on_stop:
            kept_s = ran_s
        return kept_s * self._rate(running), ran_s - kept_s

    def _fail_later(self, node: str) -> None:
        self.at(self.now + self._dice.expovariate(1.0 / self.chance.node_mtbf_s), partial(self.lose, node))

    def lose(self, node: str) -> None:
        """Lose the node, with all that runs on it; it returns after its repair."""
        self.store.node(node, NodeState.LOST)
        for name in self.store.running_on(node):
            self._end(name, self.store.entries[name].epoch, Cause.NODE_FAIL)
        self.at(self.now + self.chance.repair_s, partial(self._repair, node))

    def plan_stop(self, node: str, stop_at: float) -> None:
        """Drain the node: nothing new starts there, and what still runs at ``stop_at`` is stopped and queued again.
        Stages are asked to save ahead of that, as live."""
        self.store.node(node, NodeState.DRAINING)
        if self.chance.save_s > 0:
            self.at(max(self.now, stop_at - saving.ahead_s(self.chance.save_s)), partial(self._ask_saves, node))
        self.at(stop_at, partial(self._stop_all, node))

    def _ask_saves(self, node: str) -> None:
        """Ask what runs on the node to save; what they have done until now is kept once that is done."""
        for name in self.store.running_on(node):
            epoch = self.store.entries[name].epoch
            self.at(self.now + self.chance.save_s, partial(self._saved, name, epoch, self.now))

    def _saved(self, name: str, epoch: int, at: float) -> None:
        entry = self.store.entries[name]
        if entry.epoch == epoch and entry.running is not None and at > (entry.running.checkpoint_at or 0.0):
            self.store.checkpointed(name, at)

    def _stop_all(self, node: str) -> None:
        for name in self.store.running_on(node):
            self._end(name, self.store.entries[name].epoch, Cause.REQUEUED)
        self.store.node(node, NodeState.DRAINED)

    def _repair(self, node: str) -> None:
        self.store.node(node, NodeState.READY)
        if self.chance.node_mtbf_s > 0:
            self._fail_later(node)

    def _confirm_checkpoints(self) -> None:
        interval = self.chance.checkpoint_s
        for name, running in self.store.running():
            if running.state is State.RUNNING:
                at = running.started_at + math.floor((self.now - running.started_at) / interval) * interval
                if at > (running.checkpoint_at or running.started_at):
                    self.store.checkpointed(name, at)

    # -- truth --------------------------------------------------------------------------------------------------------

    def _rate(self, running: Running) -> float:
        """Return the true speed: a gang is as fast as its slowest device; an elastic stage scales as the engine
        assumes."""
        grants = (one for rank in running.placement.grants for one in rank)
        slowest = speed.speed_of(running.kind, running.precision, grants, self.store.devices, self.store.speeds)
        size, least = len(running.placement.nodes), running.least_nodes
        return slowest * (faster(least, size, running.scaling) if least else 1.0)

    def _stage(self, number: int, one: Arrival) -> Stage:
        true_s = self._true_s[one.id] = max(one.duration_s, 0.001)
        error = self.chance.error
        guess_s = one.expected_s or true_s * (math.exp(self._dice.gauss(0.0, error)) if error > 0 else 1.0)
        estimate = Estimate(guess_s, guess_s * math.exp(1.2816 * error), Basis.TRACE if error else Basis.TRUTH)
        gpus, share = (math.floor(one.gpus), 1000) if one.gpus >= 1 else (1, round(one.gpus * 1000))
        cpu = Ask("cpu", 1, max(10, round(one.cpus * 1000)), GIB)
        asks = (Ask("gpu", gpus, share, model=one.model), cpu) if one.gpus > 0 else (cpu,)
        return Stage(
            id=one.id,
            job=one.id,
            number=number,
            name=one.id,
            project=one.project,
            user=one.user,
            pool="default",
            kind=one.kind,
            priority=one.priority,
            submitted_at=one.submit_s,
            eligible_at=one.submit_s,
            alternatives=(Alternative(0, asks),),
            estimate=estimate,
            nodes=one.nodes,
            most_nodes=one.most_nodes,
            scaling=one.scaling,
            time_limit_s=one.limit_s,
            unmet=one.needs,
            truth_s=true_s,
        )
