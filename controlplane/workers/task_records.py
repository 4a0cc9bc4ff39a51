"""Records of Celery tasks: when each last succeeded, how often it failed, and the last error.

Written by the process that ran the task, rarely for successes. An unreachable database is ignored.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from celery.signals import task_failure, task_postrun, task_prerun
from django.db import DatabaseError, InterfaceError, connection

log = logging.getLogger(__name__)

# Successes are recorded once per this many seconds; failures in a row once per second.
WELL_S: Final = 5.0
ILL_S: Final = 1.0
LONGEST_ERROR: Final = 500

_WELL = """
INSERT INTO fleet_task_record AS t (name, done_at, took_s, failures, error) VALUES (%s, now(), %s, 0, '')
ON CONFLICT (name) DO UPDATE SET done_at = excluded.done_at, took_s = excluded.took_s
"""
_ILL = """
INSERT INTO fleet_task_record AS t (name, failed_at, took_s, failures, error) VALUES (%s, now(), 0, %s, %s)
ON CONFLICT (name) DO UPDATE SET failed_at = excluded.failed_at, error = excluded.error,
    failures = least(t.failures::bigint + excluded.failures, 2000000000)
"""

_begun: dict[str, float] = {}
_well_at: dict[str, float] = {}
_ill_at: dict[str, float] = {}
_ill: dict[str, int] = {}


def record_success(name: str, took_s: float) -> None:
    """Record that a task succeeded now."""
    now = time.monotonic()
    if now - _well_at.get(name, float("-inf")) >= WELL_S and _write(_WELL, [name, round(took_s, 6)]):
        _well_at[name] = now


def record_failure(name: str, error: object) -> None:
    """Record that a task failed now, together with earlier failures that were not recorded."""
    now = time.monotonic()
    _ill[name] = _ill.get(name, 0) + 1
    if now - _ill_at.get(name, float("-inf")) < ILL_S:
        return
    _ill_at[name] = now
    says = " ".join(f"{type(error).__name__}: {error}".replace("\x00", "").split())[:LONGEST_ERROR]
    if _write(_ILL, [name, _ill[name], says]):
        del _ill[name]
        _well_at.pop(name, None)


def _write(query: str, params: list[Any]) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute(query, params)
    except (DatabaseError, InterfaceError) as problem:
        log.warning("how a task fared could not be written down: %s", problem)
        return False
    return True


@task_prerun.connect  # type: ignore[untyped-decorator]
def _begin(task_id: str = "", **_: Any) -> None:
    _begun[task_id] = time.monotonic()


@task_postrun.connect  # type: ignore[untyped-decorator]
def _end(sender: Any = None, task_id: str = "", state: str = "", **_: Any) -> None:
    began_at = _begun.pop(task_id, None)
    if state == "SUCCESS" and began_at is not None and not sender.request.is_eager:
        record_success(sender.name, time.monotonic() - began_at)


@task_failure.connect  # type: ignore[untyped-decorator]
def _fail(sender: Any = None, exception: object = None, **_: Any) -> None:
    if not sender.request.is_eager:
        record_failure(sender.name, exception)
