"""Adapts a restored database to the time since its backup, which nodes and disks remember."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import DatabaseError, connection, transaction
from django.db.models import F

from controlplane.fleet.models import Node
from controlplane.jobs import service
from controlplane.jobs.models import Job, Stage
from scheduler.core.model.lifecycle import State

ACTOR: Final = "restore"


@dataclass(frozen=True, slots=True)
class Skipped:
    """The next numbers, and how many nodes accept orders again."""

    job: int
    project: int
    nodes: int


def skip(numbers: int, last_job: int = 0) -> Skipped:
    """Skip the numbers that may have been assigned since the backup, and let nodes accept orders although they have
    seen newer ones. ``last_job`` is a number that was certainly assigned.

    Folders and files of those jobs and projects still exist.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        first = []
        # There are few projects, and each number has one uid of a range.
        for sequence, by in (("jobs_job_number", numbers), ("access_project_number", min(numbers, 100))):
            least = last_job if sequence == "jobs_job_number" else 0
            cursor.execute("SELECT setval(%s, greatest(nextval(%s) + %s, %s))", [sequence, sequence, by, least])
            first.append(cursor.fetchone()[0] + 1)
        nodes = Node.objects.update(generation=F("generation") + numbers)
    return Skipped(first[0], first[1], nodes)


@dataclass(frozen=True, slots=True)
class Before:
    """Facts of the database that is replaced. ``began`` are the stages that it started since the backup; None if
    unknown: a new installation, or a database of another release."""

    began: frozenset[uuid.UUID] | None
    last_job: int


def before(made_at: datetime) -> Before:
    """Read the database that is about to be replaced."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT stage_id FROM jobs_attempt WHERE created_at >= %s", [made_at])
            began = frozenset(stage for (stage,) in cursor.fetchall())
            cursor.execute("SELECT last_value FROM jobs_job_number")
            last = int(cursor.fetchone()[0])
            cursor.execute("SELECT exists(SELECT FROM jobs_job)")
            used = bool(cursor.fetchone()[0])
    except DatabaseError:
        return Before(None, 0)
    return Before(began if used else None, last)


def hold(began: Collection[uuid.UUID] | None, made_at: datetime) -> list[int]:
    """Hold the waiting jobs that may have run since the backup; return their numbers.

    These are jobs with a stage in ``began``; all waiting jobs if that is unknown.
    """
    waiting = Stage.objects.filter(state=State.PENDING)
    if began is not None:
        waiting = waiting.filter(id__in=began)
    jobs = Job.objects.filter(id__in=waiting.values("job_id")).order_by("number")
    why = f"the record was restored from the backup of {made_at:%Y-%m-%d %H:%M} UTC, and it may have run since"
    return [service.hold(job, ACTOR, why).number for job in jobs.iterator()]
