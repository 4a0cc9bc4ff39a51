"""What to do so that a service has the replicas that it is to have. Pure: the same world gives the same plan.

A plan starts, drains and stops replicas. At no time are there more than the wanted ones and ``surge``; while enough are
ready, never fewer than the wanted ones less ``unavailable`` stay ready; one that serves is drained before it is
stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum


class ReplicaStanding(IntEnum):
    """How a replica stands; those that are worth less come first."""

    DRAINING = 0
    UNHEALTHY = 1
    STARTING = 2
    READY = 3


@dataclass(frozen=True, slots=True)
class ReplicaHere:
    """A replica that has not ended. ``is_left`` says that no router has a request there, nor sends one."""

    id: int
    revision: int
    standing: ReplicaStanding
    outstanding: int = 0
    is_left: bool = False
    drains_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a service is to have: ``replicas`` of ``revision``, and of ``former`` what ``canary`` percent leave.

    ``failed`` are revisions that cannot serve, ``waits`` those of which none is started now, because the last ones
    ended at once.
    """

    revision: int
    replicas: int
    former: int | None = None
    surge: int = 1
    unavailable: int = 0
    canary: int = 100
    drain_s: float = 30.0
    failed: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What to do: revisions of which one is started each, and replicas by their ids."""

    start: tuple[int, ...] = ()
    drain: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()


def targets(wish: Wish) -> dict[int, int]:
    """Return how many replicas of each revision there are to be."""
    if wish.revision in wish.failed:
        if wish.former is None or wish.former in wish.failed:
            return {}
        return {wish.former: wish.replicas}
    is_tried = wish.former not in (None, wish.revision) and wish.former not in wish.failed
    if wish.canary < 100 and wish.former is not None and is_tried and wish.replicas:
        # At least one of each, whatever the share.
        new = min(max(1, round(wish.replicas * wish.canary / 100)), max(1, wish.replicas - 1))
        return {wish.revision: new, wish.former: max(1, wish.replicas - new)}
    return {wish.revision: wish.replicas}


def reconcile(wish: Wish, here: Sequence[ReplicaHere]) -> ServicePlan:
    """Return the plan for a service with these replicas."""
    wanted = targets(wish)
    serving = [one for one in here if one.standing in (ReplicaStanding.STARTING, ReplicaStanding.READY)]
    drain = [one.id for one in here if one.standing is ReplicaStanding.UNHEALTHY]
    drain += _extra(wish, wanted, serving)
    stop = [
        one.id
        for one in here
        if one.standing is ReplicaStanding.DRAINING
        and ((one.is_left and not one.outstanding) or one.drains_s >= wish.drain_s)
    ]
    return ServicePlan(_missing(wish, wanted, serving, len(here)), tuple(drain), tuple(stop))


def _missing(wish: Wish, wanted: Mapping[int, int], serving: Sequence[ReplicaHere], count: int) -> tuple[int, ...]:
    """Return the revisions to start, within the room that is left."""
    room = most(wish) - count
    there = Counter(one.revision for one in serving)
    start: list[int] = []
    for revision, number in wanted.items():
        if revision not in wish.waits:
            start += [revision] * min(max(0, number - there[revision]), max(0, room - len(start)))
    return tuple(start)


def most(wish: Wish) -> int:
    """Return how many replicas there may be at once, those that drain included."""
    return max(wish.replicas, sum(targets(wish).values())) + (wish.surge if wish.replicas else 0)


def _extra(wish: Wish, wanted: Mapping[int, int], serving: Sequence[ReplicaHere]) -> list[int]:
    """Return which replicas to drain: those beyond what is wanted, as far as enough ready ones stay."""
    left = Counter(one.revision for one in serving)
    ready = sum(one.standing is ReplicaStanding.READY for one in serving)
    floor = wish.replicas - wish.unavailable
    found: list[int] = []
    # Those that do not serve yet first; of the ready ones those with the least work, then the newest.
    for one in sorted(serving, key=lambda one: (one.standing, one.outstanding, -one.id)):
        if left[one.revision] <= wanted.get(one.revision, 0):
            continue
        if one.standing is ReplicaStanding.READY:
            if ready - 1 < floor:
                continue
            ready -= 1
        left[one.revision] -= 1
        found.append(one.id)
    return found


def weights(wish: Wish) -> dict[int, int]:
    """Return the shares of the requests by revision, for routers; empty if all replicas count alike."""
    if len(targets(wish)) == 2 and wish.former is not None:
        return {wish.revision: wish.canary, wish.former: 100 - wish.canary}
    return {}
