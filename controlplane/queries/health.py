"""Faults of the installation, for ``yard doctor``."""

from __future__ import annotations

from datetime import datetime

import msgspec
from redis.exceptions import RedisError

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.observability import health


class HealthCheck(msgspec.Struct, frozen=True):
    """The result of one check; ``says`` is for users who may see alarms, empty for others. If a ``vital`` check fails,
    no stage starts."""

    name: str
    ok: bool
    vital: bool
    says: str


class HealthQueue(msgspec.Struct, frozen=True):
    """A Celery queue: the number of waiting messages, and the names of its workers and of its standby workers."""

    name: str
    waiting: int
    workers: list[str]
    standing_by: list[str]


class HealthTask(msgspec.Struct, frozen=True):
    """A Celery task: when it last succeeded and how long that took, how often and when it failed, and the last error.

    ``ok`` is false if it has not succeeded since it failed.
    """

    name: str
    ok: bool
    done_at: datetime | None
    took_s: float
    failures: int
    failed_at: datetime | None
    error: str


class Installation(msgspec.Struct, frozen=True):
    """All checks; ``ok`` tells that all of them succeed. ``queues`` and ``tasks`` are for users who may see alarms."""

    ok: bool
    checks: list[HealthCheck]
    queues: list[HealthQueue]
    tasks: list[HealthTask]


def installation(user: User) -> Installation:
    """Check database, scheduler, workers, queues, tasks and storage, as far as this user may see the results."""
    sees_why = permissions.may(user, Permit.SEE_ALARMS)
    found = health.checks()
    checks = [HealthCheck(one.name, one.ok, one.vital, one.says if sees_why else "") for one in found]
    queues, tasks = (_queues(), _tasks()) if sees_why else ([], [])
    return Installation(all(one.ok for one in found), checks, queues, tasks)


def _queues() -> list[HealthQueue]:
    try:
        return [HealthQueue(one.name, one.waiting, list(one.workers), list(one.standing_by)) for one in health.queues()]
    except RedisError:  # a check reports it
        return []


def _tasks() -> list[HealthTask]:
    return [
        HealthTask(one.name, not health.fails(one), one.done_at, one.took_s, one.failures, one.failed_at, one.error)
        for one in health.tasks()
    ]
