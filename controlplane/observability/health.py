"""What is wrong with the installation: one check for each thing that it cannot do without."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from redis import Redis
from redis.exceptions import RedisError

from controlplane.fleet import alarms
from controlplane.fleet.models import Alarm, Heartbeat, Node
from controlplane.fleet.service import now_in_database

# The scheduler looks round every two seconds, the worker every minute.
SCHEDULER_LATE_S: Final = 30.0
WORKER_LATE_S: Final = 300.0
# So many messages that nobody takes are a worker that is not there.
LONG_QUEUE: Final = 200
LEAST_FREE_BYTES: Final = 2**30
# What of the alarms says that the record or the scheduler is unwell.
ALARMS: Final = (alarms.CYCLE, alarms.RECORD, alarms.INVARIANT, alarms.FUSE, alarms.STAGE, alarms.POOL, alarms.DISK)


@dataclass(frozen=True, slots=True)
class Check:
    """Whether one thing works, and a sentence for whoever runs the installation. Without what is ``vital`` no request
    can be answered or no stage can be started."""

    name: str
    ok: bool
    says: str
    vital: bool = False


def checks() -> list[Check]:
    """All checks, the vital ones first. None of them takes long, or raises."""
    found = [_tried(name, look, vital=True) for name, look in _VITAL.items()]
    if not found[0].ok:
        return found
    return found + [_tried(name, look, vital=False) for name, look in _OTHERS.items()]


def _tried(name: str, look: Callable[[], tuple[bool, str]], *, vital: bool) -> Check:
    try:
        ok, says = look()
    except (DatabaseError, RedisError, OSError) as error:
        ok, says = False, f"{type(error).__name__}: {error}"[:300]
    return Check(name, ok, says, vital)


def _database() -> tuple[bool, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), pg_database_size(current_database())")
        version, size = cursor.fetchone()
    return True, f"PostgreSQL {version}, {size / 2**20:,.0f} MiB"


def _tables() -> tuple[bool, str]:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        names = ", ".join(f"{one.app_label}.{one.name}" for one, _ in missing[:5])
        return False, f"{len(missing)} migrations are not applied ({names}); run: python manage.py migrate"
    return True, "all migrations are applied"


def _scheduler() -> tuple[bool, str]:
    late_s = _since("watch")
    if late_s is None:
        return False, "the scheduler has never looked round; is its worker started?"
    return late_s < SCHEDULER_LATE_S, f"the scheduler looked round {late_s:.0f} s ago"


def _redis() -> tuple[bool, str]:
    cache.get("health")
    return True, "it answers"


def _worker() -> tuple[bool, str]:
    late_s = _since("housekeeping")
    if late_s is None:
        return False, "nobody has cleared up yet; are worker and beat started?"
    return late_s < WORKER_LATE_S, f"the worker cleared up {late_s:.0f} s ago"


def _queues() -> tuple[bool, str]:
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    names = sorted(routed | {settings.CELERY_TASK_DEFAULT_QUEUE})
    with Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
        lengths = {name: int(client.llen(name)) for name in names}
    return max(lengths.values()) < LONG_QUEUE, ", ".join(f"{name}: {count}" for name, count in lengths.items())


def _alarms() -> tuple[bool, str]:
    found = list(Alarm.objects.filter(kind__in=ALARMS).order_by("kind", "subject")[:5])
    return not found, "; ".join(f"{one.subject}: {one.says}" for one in found) or "none about the record"


def _storage() -> tuple[bool, str]:
    folders = {"blobs": settings.BLOBS, "decisions": settings.DECISIONS}
    free = {name: shutil.disk_usage(path).free for name, path in folders.items() if path.is_dir()}
    ok = all(left > LEAST_FREE_BYTES for left in free.values())
    return ok, ", ".join(
        f"{name}: {left / 2**30:,.1f} GiB free" for name, left in free.items()
    ) or "nothing is kept yet"


def _nodes() -> tuple[bool, str]:
    states = list(Node.objects.values_list("state", flat=True))
    ready = states.count("READY")
    return bool(ready) or not states, f"{ready} of {len(states)} are READY"


_VITAL: Final[Mapping[str, Callable[[], tuple[bool, str]]]] = {
    "database": _database,
    "tables": _tables,
    "scheduler": _scheduler,
}
_OTHERS: Final[Mapping[str, Callable[[], tuple[bool, str]]]] = {
    "redis": _redis,
    "worker": _worker,
    "queues": _queues,
    "alarms": _alarms,
    "storage": _storage,
    "nodes": _nodes,
}


def _since(name: str) -> float | None:
    at = Heartbeat.objects.filter(name=name).values_list("at", flat=True).first()
    return None if at is None else (now_in_database() - at).total_seconds()
