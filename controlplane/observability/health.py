"""What is wrong with the installation: one check for each thing that it cannot do without."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.apps import apps
from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Max
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import RedisError

from controlplane.accounts.keys import KeyUnavailable, wrapper
from controlplane.accounts.models import Sealed
from controlplane.changes import CYCLE_TASK
from controlplane.clauses import in_words
from controlplane.fleet import alarms
from controlplane.fleet.models import Alarm, Heartbeat, Node, TaskRecord
from controlplane.fleet.service import now_in_database
from controlplane.providers.models import NodeProvider
from controlplane.workers import presence

# The scheduler looks round every two seconds, the worker every minute.
SCHEDULER_LATE_S: Final = 30.0
WORKER_LATE_S: Final = 300.0
# Until then a new installation may not have had anything that is due every minute.
FIRST_BEAT_S: Final = 120.0
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
        names = ", ".join(f"{one.app_label}.{one.name}" for one, _backwards in missing[:5])
        problem = ngettext(
            "{n} migration is not applied ({names}); run: python manage.py migrate",
            "{n} migrations are not applied ({names}); run: python manage.py migrate",
            len(missing),
        )
        return False, problem.format(n=len(missing), names=names)
    return True, _("all migrations are applied")


def _scheduler() -> tuple[bool, str]:
    late_s = _since("watch")
    if late_s is None:
        return False, _("the scheduler has never looked round; is its worker started?")
    last = TaskRecord.objects.filter(name=CYCLE_TASK, done_at__isnull=False).first()
    says = _("the scheduler looked round {s:.0f} s ago").format(s=late_s)
    if last is not None and last.done_at is not None:
        ago_s = (now_in_database() - last.done_at).total_seconds()
        says += "; " + _("its last cycle ended {s:.0f} s ago and took {ms:.0f} ms").format(
            s=ago_s, ms=last.took_s * 1000
        )
    return late_s < SCHEDULER_LATE_S, says


def _redis() -> tuple[bool, str]:
    cache.get("health")
    return True, _("it answers")


def _beat() -> tuple[bool, str]:
    late_s = _since("housekeeping")
    if late_s is None:
        if _age_s() < FIRST_BEAT_S:
            return True, _("what beat sends every minute is due for the first time")
        return False, _("nobody has cleared up yet; are worker and beat started?")
    return late_s < WORKER_LATE_S, _("what beat sends every minute was last done {s:.0f} s ago").format(s=late_s)


def _age_s() -> float:
    """Seconds since the newest table was made: the age of a new installation."""
    newest = MigrationRecorder.Migration.objects.aggregate(Max("applied"))["applied__max"]
    return float((now_in_database() - newest).total_seconds())


def _queues() -> tuple[bool, str]:
    found = queues()
    waiting = ", ".join(f"{one.name}: {one.waiting}" for one in found)
    return all(one.waiting < LONG_QUEUE for one in found), waiting


def _workers() -> tuple[bool, str]:
    missing = [one.name for one in queues() if not one.workers]
    if missing:
        return False, _("no worker takes {queues}").format(queues=", ".join(missing))
    return True, _("each queue has a worker")


def _tasks() -> tuple[bool, str]:
    bad = [one for one in TaskRecord.objects.order_by("name") if fails(one)]
    if bad:
        problem = _("{task} fails: {error}")
        return False, "; ".join(problem.format(task=one.name, error=one.error[:150]) for one in bad[:5])
    return True, _("the last of each kind ended well")


def _alarms() -> tuple[bool, str]:
    found = list(Alarm.objects.filter(kind__in=ALARMS).order_by("kind", "subject")[:5])
    return not found, "; ".join(f"{one.subject}: {in_words(one.says, one.said)}" for one in found) or _(
        "none about the record"
    )


def _storage() -> tuple[bool, str]:
    folders = {"blobs": settings.BLOBS, "decisions": settings.DECISIONS}
    free = {name: shutil.disk_usage(path).free for name, path in folders.items() if path.is_dir()}
    ok = all(left > LEAST_FREE_BYTES for left in free.values())
    told = _("{folder}: {gib:,.1f} GiB free")
    said = ", ".join(told.format(folder=name, gib=left / 2**30) for name, left in free.items())
    return ok, said or _("nothing is kept yet")


def _secrets() -> tuple[bool, str]:
    try:
        newest = wrapper().newest()
        for model in (one for one in apps.get_models() if issubclass(one, Sealed)):
            for one in model._default_manager.order_by("key_id").distinct("key_id"):
                one.require_key()
    except KeyUnavailable as error:
        return False, str(error)
    return True, _("all their keys are there; {key} wraps new ones").format(key=newest)


def _nodes() -> tuple[bool, str]:
    states = list(Node.objects.values_list("state", flat=True))
    ready = states.count("READY")
    said = ngettext("{n} of {all} is READY", "{n} of {all} are READY", ready)
    return bool(ready) or not states, said.format(n=ready, all=len(states))


def _providers() -> tuple[bool, str]:
    enabled = list(NodeProvider.objects.filter(enabled=True).order_by("name"))
    ill = [f"{one.name}: {in_words(one.condition, one.said)}" for one in enabled if one.condition]
    if ill:
        return False, "; ".join(ill[:5])
    well = ngettext("{n} brings nodes", "{n} bring nodes", len(enabled)).format(n=len(enabled))
    return True, well if enabled else _("none is enabled")


_VITAL: Final[Mapping[str, Callable[[], tuple[bool, str]]]] = {
    "database": _database,
    "tables": _tables,
    "scheduler": _scheduler,
}
_OTHERS: Final[Mapping[str, Callable[[], tuple[bool, str]]]] = {
    "redis": _redis,
    "workers": _workers,
    "beat": _beat,
    "queues": _queues,
    "tasks": _tasks,
    "alarms": _alarms,
    "storage": _storage,
    "secrets": _secrets,
    "nodes": _nodes,
    "providers": _providers,
}


def _since(name: str) -> float | None:
    at = Heartbeat.objects.filter(name=name).values_list("at", flat=True).first()
    return None if at is None else (now_in_database() - at).total_seconds()


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many messages of a queue nobody has taken yet, who takes them, and who stands by to do so."""

    name: str
    waiting: int
    workers: tuple[str, ...]
    standing_by: tuple[str, ...]


def queues() -> list[QueueDepth]:
    """All queues in the order of the settings. Raises ``RedisError`` where Redis does not answer."""
    with presence.connect() as redis:
        seen = presence.workers(redis)
        return [
            QueueDepth(
                name,
                int(redis.llen(name)),
                tuple(one.name for one in seen if name in one.queues and not one.stands_by),
                tuple(one.name for one in seen if name in one.queues and one.stands_by),
            )
            for name in settings.QUEUES
        ]


def tasks() -> list[TaskRecord]:
    """How each Celery task fares, by name."""
    return list(TaskRecord.objects.order_by("name"))


def fails(task: TaskRecord) -> bool:
    """Whether a task has not ended well since it failed."""
    return task.failed_at is not None and (task.done_at is None or task.done_at < task.failed_at)
