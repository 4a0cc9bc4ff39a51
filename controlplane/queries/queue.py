"""The queue: the waiting jobs in the order of their priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Count

from controlplane.accounts.models import User
from controlplane.jobs import models as rows
from controlplane.queries import job_rows, jobs
from scheduler.core.model.lifecycle import WAITING


class QueuedJob(msgspec.Struct, frozen=True):
    """A waiting job. ``place`` counts the pending jobs of its pool with a higher priority, or the same and an earlier
    submission; it is null while the job is on hold. The pool's profile may start others first."""

    place: int | None
    job: job_rows.Job


class QueueSlice(msgspec.Struct, frozen=True):
    """A part of the queue, by pool and place. ``total`` is the number of waiting jobs that you may see."""

    results: list[QueuedJob]
    total: int


_PLACES: Final = """
SELECT id, place FROM (
    SELECT id, row_number() OVER (PARTITION BY pool_id ORDER BY priority DESC, number) AS place
    FROM jobs_job WHERE state = 'PENDING' AND pool_id = ANY(%s)) ranked
WHERE id = ANY(%s)
"""


def _places(chosen: Sequence[rows.Job]) -> dict[UUID, int]:
    """The places of these jobs by id, counted among all pending jobs of their pools, also those that the user may not
    see; without those that are on hold. One pass over the queue, however many jobs are asked for."""
    pools, ids = list({job.pool_id for job in chosen}), [job.id for job in chosen]
    with connection.cursor() as cursor:
        cursor.execute(_PLACES, [pools, ids])
        return dict(cursor.fetchall())


def by_pool(user: User) -> dict[str, int]:
    """The number of waiting jobs that this user may see, by the name of their pool."""
    waiting = jobs.visible(user).filter(state__in=WAITING).order_by("pool__name")
    return dict(waiting.values_list("pool__name").annotate(Count("id")))


def queued(user: User, pool: str, first: int, most: int) -> list[QueuedJob]:
    """The waiting jobs that this user may see, by pool, of higher priority first and then of lower number: at most
    ``most`` after the first ``first`` ones."""
    waiting = job_rows.whole(jobs.visible(user)).filter(state__in=WAITING)
    line = (waiting.filter(pool__name=pool) if pool else waiting).order_by("pool__name", "-priority", "number")
    chosen = list(line[first : first + most])
    places = _places(chosen)
    return [QueuedJob(places.get(job.id), job) for job in job_rows.shown(chosen)]


def total(counts: Mapping[str, int], pool: str) -> int:
    """How many wait in this pool, or in all of them, of the numbers that :func:`by_pool` returns."""
    return counts.get(pool, 0) if pool else sum(counts.values())


def read(user: User, pool: str, first: int, most: int) -> QueueSlice:
    """A part of the queue, and how long it is."""
    return QueueSlice(queued(user, pool, first, most), total(by_pool(user), pool))
