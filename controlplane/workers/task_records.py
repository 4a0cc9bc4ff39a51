"""How each Celery task fares: when it last ended well, how often it failed, and with what.

Written by the process that ran the task, seldom for what went well. A database that is away is no reason to fail.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from celery.signals import task_failure, task_postrun, task_prerun
from django.db import DatabaseError, InterfaceError, connection

log = logging.getLogger(__name__)

# What went well is written down once in so long; a task that fails in a row, once a second.
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


def went_well(name: str, took_s: float) -> None:
    """Writes down that a task ended well just now."""
    now = time.monotonic()
    if now - _well_at.get(name, float("-inf")) >= WELL_S and _write(_WELL, [name, round(took_s, 6)]):
        _well_at[name] = now


def failed(name: str, error: object) -> None:
    """Writes down that a task failed just now; those that were not written down before are counted with it."""
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
        went_well(sender.name, time.monotonic() - began_at)


@task_failure.connect  # type: ignore[untyped-decorator]
def _fail(sender: Any = None, exception: object = None, **_: Any) -> None:
    if not sender.request.is_eager:
        failed(sender.name, exception)
