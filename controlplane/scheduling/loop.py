"""The scheduling cycle of the live cluster; one runs at a time in the whole installation.

State is kept in the process: the snapshot as it was read, the planner, and the thread's database connection with its
prepared statements. The advisory lock saves work and is not needed for correctness: two cycles at once would give the
same result. Between two cycles a timer sends the message that asks for the next; it does nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from django.db import DatabaseError, OperationalError, connection

from controlplane import changes
from controlplane.advisory_lock import LockKey
from controlplane.clauses import clause, of_error, told
from controlplane.counted import CYCLE_BOUNDS, counter
from controlplane.fleet import alarms
from controlplane.jobs import dependencies, halving
from controlplane.scheduling.alarms import CycleAlarms
from controlplane.scheduling.recorder import recorder
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.planning import aside
from scheduler.core.planning.cycle import Cycle, run, tell_more
from scheduler.core.planning.garbage import keep_all

_store = LiveStore()
_planner = aside.TolerantPlanner()
_alarms = CycleAlarms()
_mutex = threading.Lock()
_last_at = 0.0
_last_s = 0.0
_began_at = float("-inf")
_done: Cycle | None = None
# The messages that request the next cycle, and the next evaluation of waiting stages.
_timers: dict[Callable[[], None], threading.Timer] = {}
# No reasons are written between the cycles within this time after one, so that new work has the core. The pause between
# two evaluations is this multiple of the duration of the first.
QUIET_S = 0.5
REST = 2.0


def last_cycle_at() -> float:
    """When this process last began a cycle, by the monotonic clock."""
    return _began_at


def forget() -> None:
    """Make the next cycle of this process read and plan everything again, because the last one was interrupted."""
    global _store, _planner, _done
    with _mutex:
        _store, _planner, _done = LiveStore(), aside.TolerantPlanner(), None


@contextlib.contextmanager
def _scheduling_lock() -> Iterator[bool]:
    """Hold the installation's scheduling lock. Yields False if another process holds it for too long."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LockKey.CYCLE])
        except OperationalError:
            yield False
            return
        try:
            yield True
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LockKey.CYCLE])


def cycle() -> None:
    """Load, plan and apply once, and set a timer for the next time that the plan names."""
    global _last_at, _last_s, _began_at, _done
    with _mutex:
        # Under a flood of wakes the cycle takes at most half of a core: the next one finds more to do at once.
        pause = _last_s - (clock() - _last_at - _last_s)
        if 0 < pause < 1:
            time.sleep(pause)
        changes.clear_wake()
        with _scheduling_lock() as is_held:
            if not is_held:
                return
            began, _last_at, _began_at = time.perf_counter(), clock(), time.monotonic()
            try:
                halving.settle()
                dependencies.settle()
                done = run(_store, _store.profile, _last_at, _planner)
            except DatabaseError:
                raise  # it is unreachable or busy, which is reported elsewhere
            except Exception as error:
                _alarms.tell({alarms.CYCLE: {"scheduler": told(clause("NoCycle", fault=of_error(error)))}})
                raise
            finally:
                _last_s = time.perf_counter() - began
            counter.observe("cycle", (), _last_s, CYCLE_BOUNDS)
            if _store.has_read_everything:
                keep_all()
            recorder.note(done, _last_s, _last_at)
            _done = done
            _store.tell_set_aside(_planner.aside.waiting, _last_at)
            _alarms.of(done.snapshot, _store.aside, _planner.aside)
            _store.refresh(_last_at)
        _arm(_next_s(done, _last_at), changes.wake)
        _arm(QUIET_S if _store.is_behind else None, changes.explain)


def explain() -> None:
    """Write the reasons of waiting stages that the last cycle did not reach, and set a timer if more are left."""
    with _mutex, _scheduling_lock() as is_held:
        if not is_held or _done is None or not _store.is_behind:
            return
        began, now = time.perf_counter(), clock()
        explained = tell_more(_store, _planner, _done, now)
        took_s = time.perf_counter() - began
        recorder.note(explained, took_s, now, is_between=True)
        _arm(REST * took_s if _store.is_behind else None, changes.explain)


def _next_s(done: Cycle, now: float) -> float | None:
    """Return the seconds until the next cycle: few if a row was skipped, else until the next reservation is due."""
    if done.applied.skipped:
        return 0.05
    return None if done.plan.wake_at is None else max(0.01, min(done.plan.wake_at - now, 60.0))


def _arm(after_s: float | None, ask: Callable[[], None]) -> None:
    """Set the timer that sends a message after so many seconds, replacing the one before; None only cancels it."""
    if former := _timers.pop(ask, None):
        former.cancel()
    if after_s is not None:
        timer = _timers[ask] = threading.Timer(after_s, ask)
        timer.daemon = True
        timer.start()
