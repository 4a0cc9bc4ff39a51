"""Which waiting elements of arrays may not start because as many of their array run as may at once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.jobs import arrays
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Reason, Stage


@dataclass(slots=True)
class _Limited:
    """An array with a limit: its waiting stages, and what was decided of them when so many of its elements ran.

    ``again_at`` is when a stage that waited for a time may start.
    """

    limit: int
    reason: Reason
    stages: set[uuid.UUID] = field(default_factory=set)
    full: set[uuid.UUID] = field(default_factory=set)
    running: set[uuid.UUID] | None = None
    again_at: float = float("inf")


class ElementLimits:
    """Chooses, of each array with a limit, the elements that may start, in the order of their numbers.

    ``full`` has the reason of the others. Where an element cannot start for reasons of its own (it is held, or waits
    for a time or a dependency) the next one may. So many may start as are missing to the limit: whatever a plan starts
    of them is within it.
    """

    def __init__(self) -> None:
        self.full: dict[uuid.UUID, Reason] = {}
        self._arrays: dict[int, _Limited] = {}
        self._of: dict[uuid.UUID, int] = {}
        # Stages that may start as far as dependencies go.
        self._eligible: set[uuid.UUID] = set()

    def enter(self, i: uuid.UUID, stage: Stage, is_eligible: bool, number: int | None, limit: int | None) -> None:
        """Note that a waiting stage is new or changed; ``number`` and ``limit`` are those of its array, if any."""
        if number is None or limit is None:
            return
        array = self._arrays.setdefault(
            number, _Limited(limit, Reason("ArrayLimit", {"array": number, "limit": limit}))
        )
        array.stages.add(i)
        array.running = None
        self._of[i] = number
        (self._eligible.add if is_eligible else self._eligible.discard)(i)

    def remove(self, i: uuid.UUID) -> None:
        """Note that a stage does not wait any more."""
        number = self._of.pop(i, None)
        if number is None:
            return
        array = self._arrays[number]
        array.stages.discard(i)
        array.full.discard(i)
        array.running = None
        self.full.pop(i, None)
        self._eligible.discard(i)
        if not array.stages:
            del self._arrays[number]

    def changed(self, cursor: Any, now: float, stages: Mapping[uuid.UUID, Stage]) -> set[uuid.UUID]:
        """Choose anew where something changed; return the stages that may start now and could not before, and those of
        which the opposite is true."""
        found: set[uuid.UUID] = set()
        if not self._arrays:
            return found
        running = arrays.running(cursor, self._arrays)
        for number, array in self._arrays.items():
            if running[number] == array.running and now < array.again_at:
                continue
            array.running, before = running[number], array.full
            array.full = self._chosen(array, now, stages)
            found |= before ^ array.full
            for i in before - array.full:
                self.full.pop(i, None)
            self.full |= dict.fromkeys(array.full - before, array.reason)
        return found

    def _chosen(self, array: _Limited, now: float, stages: Mapping[uuid.UUID, Stage]) -> set[uuid.UUID]:
        """Return the stages that may not start."""
        active = {str(job) for job in array.running or ()}
        full: set[uuid.UUID] = set()
        array.again_at = float("inf")
        for i in sorted(array.stages, key=lambda i: stages[i].number):
            stage = stages[i]
            later = max(stage.begin_at or 0.0, stage.retry_at or 0.0)
            if later > now:
                array.again_at = min(array.again_at, later)
            if stage.state is State.HELD or later > now or i not in self._eligible or stage.job in active:
                continue
            if len(active) < array.limit:
                active.add(stage.job)
            else:
                full.add(i)
        return full
