"""The scheduling loop of the live cluster: one cycle at a time in the whole installation.

The advisory lock is for thrift, not for truth: two cycles at once would be correct, only slower.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from django.db import DatabaseError, OperationalError, connection

from controlplane import changes
from controlplane.fleet import alarms
from controlplane.scheduling.alarms import CycleAlarms
from controlplane.scheduling.recorder import recorder
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.planning import aside
from scheduler.core.planning.cycle import Cycle, run, tell_more
from scheduler.core.planning.garbage import keep_all

log = logging.getLogger(__name__)

LOCK = 0x59415244  # "YARD"

_store = LiveStore()
_planner = aside.Planner()
_alarms = CycleAlarms()
_mutex = threading.Lock()
_last_at = 0.0
_last_s = 0.0
_timer: threading.Timer | None = None
_done: Cycle | None = None
_teller: threading.Timer | None = None
# Nobody is told why it waits between the cycles before so long after one: what comes then has the core. Between two
# looks at some of them passes so many times as long as the first of the two took.
QUIET_S = 0.5
REST = 2.0


def last_cycle_at() -> float:
    """When this process last began a cycle; wall-clock seconds."""
    return _last_at


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Holds the installation's scheduling lock; yields False where another process keeps it for too long."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        except OperationalError:
            yield False
            return
        try:
            yield True
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])


def cycle() -> None:
    """Loads, plans and applies once, and arms a timer for the next moment that the plan names."""
    global _last_at, _last_s, _done
    with _mutex:
        # Under a flood of wakes the cycle takes at most half of a core: the next one finds more to do at once.
        pause = _last_s - (clock() - _last_at - _last_s)
        if 0 < pause < 1:
            time.sleep(pause)
        changes.clear_wake()
        with _alone() as mine:
            if not mine:
                return
            began, _last_at = time.perf_counter(), clock()
            try:
                done = run(_store, _store.profile, _last_at, _planner)
            except DatabaseError:
                raise  # it is away or busy, which other places tell
            except Exception as error:
                _alarms.tell({alarms.CYCLE: {"scheduler": f"no cycle comes through: {type(error).__name__}: {error}"}})
                raise
            finally:
                _last_s = time.perf_counter() - began
            if _store.has_read_everything:
                keep_all()
            recorder.note(done, _last_s, _last_at)
            _done = done
            _store.tell_set_aside(_planner.aside.waiting, _last_at)
            _alarms.of(done.snapshot, _store.aside, _planner.aside)
        _arm(done.plan.wake_at, _last_at, again=bool(done.applied.skipped))
        _arm_teller(QUIET_S)


def tell() -> None:
    """Tells some of those who were left by the last cycle why they wait, and arms a timer where more are left."""
    with _mutex, _alone() as mine:
        if not mine or _done is None or not _store.is_behind:
            return
        began, now = time.perf_counter(), clock()
        told = tell_more(_store, _planner, _done, now)
        took_s = time.perf_counter() - began
        recorder.note(told, took_s, now, is_between=True)
        _arm_teller(REST * took_s)


def _arm_teller(after_s: float) -> None:
    """Goes on to tell those who wait, where some are left."""
    global _teller
    if _teller is not None:
        _teller.cancel()
    if _store.is_behind:
        _teller = threading.Timer(after_s, _tell_beside)
        _teller.daemon = True
        _teller.start()


def _tell_beside() -> None:
    try:
        tell()
    except Exception:
        log.exception("some of those who wait could not be told why; the next cycle goes on")
    finally:
        connection.close()  # each pass is a thread of its own, and nobody else will close its connection


def _arm(wake_at: float | None, now: float, *, again: bool) -> None:
    """The next look: soon where something was skipped, else when an entry falls due."""
    global _timer
    if _timer is not None:
        _timer.cancel()
    delay = 0.05 if again else None if wake_at is None else max(0.01, min(wake_at - now, 60.0))
    if delay is not None:
        _timer = threading.Timer(delay, changes.wake)
        _timer.daemon = True
        _timer.start()
