"""The limit of arrays on elements that run at once, and what is done with all elements of one.

An element runs while a stage of it is active. The limit is checked where a stage is placed, under the lock of the
array's row, against the states of the elements: nothing is counted that a killed process could leave wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Count

from controlplane.accounts import audit
from controlplane.jobs import service
from controlplane.jobs.models import Array, Job
from scheduler.core.model.lifecycle import FINAL, IllegalTransition, State, job_state
from scheduler.core.model.lifecycle import StageEvent as What

# Elements that are cancelled, held or released in one transaction.
AT_ONCE: Final = 500

_RUNNING: Final = """
SELECT DISTINCT j.array_id, j.id FROM jobs_job j JOIN jobs_stage s ON s.job_id = j.id
WHERE j.array_id = ANY(%s) AND j.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED')
  AND s.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED')
"""


def running(cursor: Any, arrays: Iterable[int]) -> dict[int, set[uuid.UUID]]:
    """Return the elements of each of these arrays that run."""
    found: dict[int, set[uuid.UUID]] = {number: set() for number in arrays}
    cursor.execute(_RUNNING, [list(found)])
    for number, job in cursor.fetchall():
        found[number].add(job)
    return found


def full(starting: Iterable[Job]) -> set[uuid.UUID]:
    """Return those of the jobs, in the order in which they are to start, that their arrays do not let run now.

    The jobs must be locked and the nodes not yet. Locks the arrays until the transaction ends.
    """
    elements = [job for job in starting if job.array_id is not None]
    numbers = {job.array_id for job in elements if job.array_id is not None}
    if not numbers:
        return set()
    rows = Array.objects.select_for_update().filter(number__in=numbers, max_parallel__isnull=False).order_by("number")
    limits = dict(rows.values_list("number", "max_parallel"))
    if not limits:
        return set()
    with connection.cursor() as cursor:
        active = running(cursor, limits)
    barred = set()
    for job in elements:
        limit = limits.get(job.array_id or 0)
        if limit is None or job.id in active[job.array_id or 0]:
            continue
        if len(active[job.array_id or 0]) < limit:
            active[job.array_id or 0].add(job.id)
        else:
            barred.add(job.id)
    return barred


def cancel(array: Array, actor: str, reason: str = "") -> None:
    """Cancel all elements of an array that have not ended, the last ones first. Idempotent."""
    _in_steps(array, lambda ids: service.cancel_many(ids, actor, reason), "cancel", reason)


def hold(array: Array, actor: str, reason: str = "") -> None:
    """Hold the waiting elements of an array. Raises IllegalTransition if none waits."""
    _hold_or_release(array, actor, reason, What.HOLD)


def release(array: Array, actor: str, reason: str = "") -> None:
    """Release the held elements of an array. Raises IllegalTransition if none is held."""
    _hold_or_release(array, actor, reason, What.RELEASE)


def states(array: Array) -> dict[str, int]:
    """Return the number of elements in each state."""
    counted = array.jobs.order_by().values_list("state").annotate(count=Count("id"))
    return dict(sorted(counted))


def state_of(counts: Mapping[str, int], stopped_early: int = 0) -> State:
    """Return the state of an array as a whole, from those of its elements: as that of a job from its stages.

    What was stopped early, and is counted as CANCELLED, has done its part of the sweep: it counts as completed.
    """
    found = {State(state) for state in counts}
    if stopped_early and stopped_early >= counts.get(State.CANCELLED, 0):
        found = found - {State.CANCELLED} | {State.COMPLETED}
    return job_state(sorted(found) or [State.COMPLETED])


def _hold_or_release(array: Array, actor: str, reason: str, what: What) -> None:
    count = _in_steps(array, lambda ids: service.hold_or_release_many(ids, actor, reason, what), str(what), reason)
    if not count:
        raise IllegalTransition(state_of(states(array)), what)


def _in_steps(array: Array, act: Callable[[list[uuid.UUID]], int], action: str, reason: str) -> int:
    """Act on the open elements of an array, some in each transaction, and return how many changed.

    The last ones come first: others start at the other end meanwhile. The audit entry is written with the first change.
    """
    jobs = array.jobs.exclude(state__in=sorted(FINAL)).order_by("-array_index")
    ids, before, count = list(jobs.values_list("id", flat=True)), states(array), 0
    for at in range(0, len(ids), AT_ONCE):
        with transaction.atomic():
            changed = act(ids[at : at + AT_ONCE])
            if changed and not count:
                named = ("array", array.number, f"#{array.number}")
                audit.record(f"array.{action}", named, before=before, after={"open": len(ids)}, reason=reason)
            count += changed
    return count
