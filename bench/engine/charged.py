"""A simulated world that counts as the published simulator of Muri does.

Time goes from event to event (an arrival, an end, a turn of the order). In each interval between two events every
running job makes progress for the interval less its overhead, whether it was stopped or not: that simulator charges
each decision to all who run. Decisions are the engine's, as in every simulated world.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.types import Running
from scheduler.sim.world import Lived, SimulatedWorld

# What is less than this is done, in seconds.
DONE_S: Final = 1e-6


class ChargedWorld(SimulatedWorld):
    """A world in which each interval costs; ``charges`` holds the overhead in seconds of each arrival by its id.
    Overhead is service too, under every policy, as in the published simulator.

    There are no time limits and no failures in it, and all devices are of speed 1.
    """

    charges: Mapping[str, float]

    def run(self, progress: Callable[[int, int], None] | None = None, until: float = math.inf) -> Lived:
        """Live until nothing is left to do."""
        left: dict[str, float] = {}
        self._left = left
        arrivals, at, total = self._arrivals, 0, len(self._arrivals)
        stages = [self._stage(number + 1, one) for number, one in enumerate(arrivals)]
        while at < total or left or self.store.unfinished:
            ends = [self.now + rest + self.charges[name] for name, rest in left.items()]
            following = arrivals[at].submit_s if at < total else math.inf
            happens_at = min(following, self._wake_at, *ends) if ends else min(following, self._wake_at)
            if happens_at == math.inf or happens_at > until:
                break
            span, self.now = happens_at - self.now, happens_at
            for name in list(left):
                done_s = max(0.0, span - self.charges[name])
                left[name] -= done_s
                if left[name] <= DONE_S:
                    del left[name]
                    self._complete(name, self.store.entries[name].epoch)
                else:
                    self.store.recount(name, done_s, self.now)
            while at < total and arrivals[at].submit_s <= self.now:
                self._arrive(stages[at])
                at += 1
            self._cycle()
            if progress and self._cycles % 64 == 0:
                progress(total - self._pending - self.store.unfinished, total)
        entries = tuple(self.store.entries[name] for name in sorted(self.store.entries))
        ended_at = max((entry.ended_at for entry in entries if entry.ended_at is not None), default=0.0)
        devices = sum(device.kind != "cpu" for device in self.store.devices.values())
        return Lived(entries, arrivals[0].submit_s if arrivals else 0.0, ended_at, self._cycles, devices)

    def _wake(self, when: float) -> None:
        self._wake_at = min(self._wake_at, when)

    def _begin(self, name: str) -> None:
        if self.store.entries[name].running is not None:
            self.store.began(name)
            self._left[name] = self._left_s(name)

    def _kept(self, running: Running, cause: Cause) -> tuple[float, float]:
        done_s = self._left_s(running.id) - self._left.pop(running.id)
        return done_s, 0.0
