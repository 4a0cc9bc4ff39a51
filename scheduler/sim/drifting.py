"""A simulated world whose nodes have varying other work, which slows down the stages beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.types import Running
from scheduler.sim.world import SimulatedWorld

# Loads are reported in steps of an eighth, as from agents.
STEP: Final = 0.125


@dataclass(frozen=True, slots=True)
class Drift:
    """From ``at_s`` on, other work asks for ``load`` times all cores of the node."""

    at_s: float
    node: str
    load: float


class DriftingWorld(SimulatedWorld):
    """A world in which everything on an overloaded node is slowed down by its load: other work and what its stages hold
    of its cores. The engine sees the present load of each node in every cycle."""

    def __init__(self, nodes: Any, arrivals: Any, profile: Any, drifts: Sequence[Drift], **more: Any) -> None:
        super().__init__(nodes, arrivals, profile, **more)
        self._cores = {node.id: sum(one.capacity_milli for one in node.devices if one.kind == "cpu") for node in nodes}
        self._others: dict[str, float] = dict.fromkeys(self._cores, 0.0)
        self._done_s: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._pace: dict[str, float] = {}
        for one in drifts:
            self.at(one.at_s, partial(self._drift, one))

    def _drift(self, drift: Drift) -> None:
        self._others[drift.node] = drift.load

    def _cycle(self) -> None:
        self._report_loads()
        super()._cycle()
        self._update_paces()

    def _load(self, node: str) -> float:
        held = sum(
            one.milli
            for name in self.store.running_on(node)
            if (running := self.store.entries[name].running) is not None
            for place, rank in zip(running.placement.nodes, running.placement.grants, strict=True)
            if place == node
            for one in rank
            if self.store.devices[one.device].kind == "cpu"
        )
        load: float = self._others[node] + held / self._cores[node]
        return load

    def _report_loads(self) -> None:
        for name, node in list(self.store.nodes.items()):
            load = round(self._load(name) / STEP) * STEP
            if load != node.load:
                self.store.load_of(name, load)

    def _update_paces(self) -> None:
        """Set the pace of running stages to what their nodes allow from now on."""
        loads = {name: max(1.0, self._load(name)) for name in self.store.nodes}
        for name, running in self.store.running():
            if name not in self._since:
                continue
            pace = self._rate(running) / max(loads[node] for node in running.placement.nodes)
            if pace != self._pace[name]:
                self._count(name)
                self._pace[name] = pace
                self._due(name)

    def _count(self, name: str) -> None:
        """Record the work done until now."""
        self._done_s[name] += (self.now - self._since[name]) * self._pace[name]
        self._since[name] = self.now

    def _due(self, name: str) -> None:
        left_s = max(self._left_s(name) - self._done_s[name], 0.0)
        epoch, pace = self.store.entries[name].epoch, self._pace[name]
        self.at(self.now + left_s / pace, partial(self._complete_at, name, epoch, pace, self.now))

    def _begin(self, name: str) -> None:
        entry = self.store.entries[name]
        if entry.running is None:
            return
        self.store.began(name)
        self._done_s[name], self._since[name], self._pace[name] = 0.0, self.now, 0.0

    def _complete_at(self, name: str, epoch: int, pace: float, since: float) -> None:
        """Complete the stage, unless its pace changed in between."""
        if self.store.entries[name].epoch == epoch and self._pace.get(name) == pace and self._since[name] == since:
            self._forget(name)
            self._complete(name, epoch)

    def _kept(self, running: Running, cause: Cause) -> tuple[float, float]:
        self._count(running.id)
        ran_s, done_s = self.now - running.started_at, self._done_s[running.id]
        self._forget(running.id)
        kept_s, lost_s = super()._kept(running, cause)
        share = kept_s / max(kept_s + lost_s * self._rate(running), 1e-9)
        return done_s * share, ran_s * (1.0 - share)

    def _forget(self, name: str) -> None:
        for known in (self._done_s, self._since, self._pace):
            known.pop(name, None)
