"""The cost and the gain of a preemption, both in weighted device-seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from scheduler.core.model.kinds import is_amount, is_device
from scheduler.core.model.types import Alternative, Grant, Running, Stage

if TYPE_CHECKING:
    from scheduler.core.world.read_only import ReadOnlyWorld
    from scheduler.core.world.reservation import TimetableEntry

# Weights are priorities in units of the class "medium".
UNIT: Final = 500.0
# Priors, until measured: reading a checkpoint back, and getting through the queue again.
RESTORE_S: Final = 10.0
QUEUE_S: Final = 10.0


def weight(priority: int) -> float:
    """Return the weight of a second of a stage of this priority; always above 0."""
    return max(priority, 1) / UNIT


def price(victim: Running, now: float) -> float:
    """Return what is lost when ``victim`` stops now.

    This is its work since the last confirmed checkpoint (all of it without one, none if it saves when told to stop),
    reading the checkpoint, and starting again.
    """
    saved_at, again_s = at_stake(victim)
    return weight(victim.priority) * width(victim) * (max(0.0, now - saved_at) + again_s)


def at_stake(victim: Running) -> tuple[float, float]:
    """Return since when its work would be lost, and how many seconds it takes to return to the saved state."""
    saved_at = victim.checkpoint_at if victim.checkpoint_at is not None else victim.started_at
    restore_s = RESTORE_S if victim.checkpoint_at is not None or victim.saves_on_stop else 0.0
    since = float("inf") if victim.saves_on_stop else max(saved_at, victim.started_at)
    return since, restore_s + victim.restart_s + QUEUE_S


def gain(priority: int, devices: float, wait_s: float, delay_s: float) -> float:
    """Return the gain if a stage starts after ``delay_s`` (the grace of its victims) rather than after ``wait_s``."""
    return weight(priority) * devices * max(0.0, wait_s - delay_s)


def relief(world: ReadOnlyWorld, stage: Stage, above: int, sooner_s: float) -> float:
    """Return the gain for the stages reserved behind ``stage`` if it starts ``sooner_s`` before its reservation.

    They may start earlier by as much, but at most by the time it would have held their devices. Stages of no class
    ``above`` that of the victims gain nothing, because the victims continue before them.
    """
    followers = [one for one in behind(world, stage) if one.stage.priority > above]
    if not followers:
        return 0.0
    entry = world.reservations[stage.id].option
    most_s = min(sooner_s, entry.end_at - entry.start_at)
    each = (
        gain(one.stage.priority, _held(one.option.grants), min(most_s, one.option.start_at - world.now), 0.0)
        for one in followers
    )
    return math.fsum(each)


def behind(world: ReadOnlyWorld, stage: Stage) -> list[TimetableEntry]:
    """Return the reservations that follow that of ``stage`` on one of its devices; none without a reservation."""
    entry = world.reservations.get(stage.id)
    if entry is None:
        return []
    held = {one.device for one in entry.option.grants}
    return [
        one
        for one in world.reservations.values()
        if one.option.start_at >= entry.option.end_at and any(grant.device in held for grant in one.option.grants)
    ]


def width(victim: Running) -> float:
    """Return how many devices it holds: accelerators if it has any, else CPU cores. Shares count as fractions."""
    return _held(one for rank in victim.placement.grants for one in rank)


def _held(grants: Iterable[Grant]) -> float:
    return max(sum(one.milli for one in grants if not is_amount(one.device)) / 1000, 0.01)


def breadth(alternative: Alternative, nodes: int) -> float:
    """Return how many devices a placement of ``alternative`` would hold, in the same unit."""
    asks = [ask for ask in alternative.asks if is_device(ask.kind)]
    return max(sum(ask.count * ask.milli for ask in asks) * nodes / 1000, 0.01)
