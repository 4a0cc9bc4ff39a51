"""Keeps one feedback queue for each set of parts that share a queued device, and returns the parts to suspend.

A device is time-shared if its node is configured for it (``--queued gpu``, or a device's uuid) and while several live
parts hold shares of it. Use of a CPU is counted in CPU time, of any other device in the time of being allowed to run.
Parts that share several devices are in one queue: two queues could give each of them half of what it needs, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.protocol import DeviceClaim, Share
from agents.resources.feedback_queue import FeedbackQueue, QueueRequest, QueueRules, turn

if TYPE_CHECKING:
    from agents.tasks.part import StartedPart

PERIOD_S = 0.1
# Queue classes by the level on which they stay.
LEVEL = {"short": 0, "long": -1}


def wish(share: Share) -> QueueRequest:
    """Return the request of a revision to the queue."""
    return QueueRequest(LEVEL.get(share.queue_class or ""), share.quantum_s)


@dataclass
class Turns:
    """``queued`` has kinds and uuids of the time-shared devices."""

    queued: Collection[str] = ()
    rules: QueueRules = field(default_factory=QueueRules)
    _queues: dict[frozenset[str], FeedbackQueue] = field(default_factory=dict)
    _allowed_s: dict[str, float] = field(default_factory=dict)
    _asked_at: float | None = None

    @property
    def is_contended(self) -> bool:
        """Whether a part waits for a turn, so that the next check must not be late."""
        return any(queue.paused for queue in self._queues.values())

    def takes(self, part: StartedPart) -> bool:
        """Whether a device of this part is time-shared."""
        return bool(self._shared(part))

    def paused(
        self,
        parts: Iterable[StartedPart],
        now: float,
        cpu_s: Callable[[StartedPart], float],
        wishes: Mapping[str, QueueRequest] | None = None,
    ) -> set[str]:
        """Return which of the parts that run or are paused on this node must not run now."""
        if not self.queued:
            return set()
        passed = 0.0 if self._asked_at is None else now - self._asked_at
        self._asked_at = now
        for queue in self._queues.values():
            if queue.running is not None:
                self._allowed_s[queue.running] = self._allowed_s.get(queue.running, 0.0) + passed
        by_name = {part.intent.part: part for part in parts}
        former, self._queues = self._queues, {}
        for group in self._groups(by_name.values()):
            queue = _closest(former, group, self.rules)
            used = {name: self._used_s(by_name[name], name == queue.running, cpu_s, queue) for name in sorted(group)}
            self._queues[group] = turn(queue, now, used, wishes)
        self._allowed_s = {name: spent for name, spent in self._allowed_s.items() if name in by_name}
        return {name for queue in self._queues.values() for name in queue.paused}

    def _shared(self, part: StartedPart) -> list[DeviceClaim]:
        """Return its claims on queued devices. Partitions are not shared: their hardware isolates them."""
        shares = [claim for claim in part.intent.devices if claim.partition is None]
        return [claim for claim in shares if {claim.uuid, claim.kind} & set(self.queued)]

    def _groups(self, parts: Iterable[StartedPart]) -> list[frozenset[str]]:
        """Return sets of two or more parts that share queued devices, directly or through each other."""
        groups: list[tuple[set[str], set[str]]] = []
        for part in parts:
            devices = {claim.uuid for claim in self._shared(part)}
            if not devices:
                continue
            names = {part.intent.part}
            for group in [group for group in groups if group[1] & devices]:
                groups.remove(group)
                names |= group[0]
                devices |= group[1]
            groups.append((names, devices))
        return [frozenset(names) for names, _ in groups if len(names) > 1]

    def _used_s(
        self, part: StartedPart, is_running: bool, cpu_s: Callable[[StartedPart], float], queue: FeedbackQueue
    ) -> float:
        if any(claim.kind != "cpu" for claim in self._shared(part)):
            return self._allowed_s.get(part.intent.part, 0.0)
        known = next((item.used_s for item in queue.items if item.part == part.intent.part), None)
        # A paused part uses nothing: only the running one's use is read from the kernel.
        return cpu_s(part) if is_running or known is None else known


def _closest(former: dict[frozenset[str], FeedbackQueue], group: frozenset[str], rules: QueueRules) -> FeedbackQueue:
    """Return the queue that most of these parts were in before: levels survive arrivals and departures."""
    best = max(former, key=lambda names: len(names & group), default=frozenset[str]())
    return former[best] if best & group else FeedbackQueue(rules=rules)
