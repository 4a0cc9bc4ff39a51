"""Records scheduling decisions: a row for pages and lists, and an entry in the decision log for replays.

A background thread writes the outcome of a cycle shortly after it. If the process dies in between, the record of that
decision is missing; its effect was committed before.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import OperationalError, close_old_connections, transaction

from controlplane import changes
from controlplane.clauses import Told, clause, of_error, told
from controlplane.fleet import alarms
from controlplane.jobs.models import Decision
from controlplane.pools.models import Pool
from controlplane.pools.profiles import spec_of
from controlplane.scheduling.waiting_reasons import key_facts
from scheduler.core.model.clauses import plain
from scheduler.core.model.types import Resize, Stop
from scheduler.core.planning.cycle import Cycle
from scheduler.decisions import canonical, code, difference, log

logger = logging.getLogger(__name__)

# Delay before writing, so that recording does not compete with the starts that the cycle has just caused.
LAG_S = 0.25
MOST = 500
SHADOW_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Noted:
    """The outcome of a cycle; ``is_between`` marks reasons refreshed between two cycles, which are not recorded."""

    cycle: Cycle
    took_s: float
    at: float
    is_between: bool = False


class Recorder:
    """Records the decisions of one process. Cycles without any news, which are most of them, are skipped."""

    def __init__(self) -> None:
        self._notes: deque[Noted] = deque()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._pid = 0
        # Primary reason and expected start of each pending stage when it was last evaluated; and counts by reason.
        self._known: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._writer = log.Writer(settings.DECISIONS)
        self._shadowed_at = 0.0
        self.lost = 0
        self._failed = False

    def note(self, cycle: Cycle, took_s: float, now: float, *, is_between: bool = False) -> None:
        """Queue the outcome of a cycle for writing and return at once."""
        while len(self._notes) >= MOST:
            self._notes.popleft()
            self.lost += 1
        self._notes.append(Noted(cycle, took_s, now, is_between))
        self._news.set()
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._work, name="recorder", daemon=True).start()

    def flush(self) -> list[Decision]:
        """Write all queued outcomes; return the new rows."""
        with self._lock:
            noted = []
            while self._notes:
                noted.append(self._notes.popleft())
            fresh = [
                (one, dict(self._counts.most_common())) for one in noted if self._is_news(one) and not one.is_between
            ]
            faults: dict[str, Told] = {}
            rows = self._rows(fresh, faults)
            if faults or self._failed:
                alarms.raised(alarms.RECORD, faults)
            self._failed = bool(faults)
        return rows

    def _rows(self, fresh: list[tuple[Noted, dict[str, int]]], faults: dict[str, Told]) -> list[Decision]:
        """Write these outcomes with their counts by reason; a failing one is noted in ``faults`` and skipped."""
        if not fresh:
            return []
        try:
            made = [_row(one, counts) for one, counts in fresh]
            with transaction.atomic():
                written = Decision.objects.bulk_create(made)
            pairs = [(one, row) for (one, _), row in zip(fresh, written, strict=True)]
        except OperationalError:
            raise
        except Exception:  # noqa: BLE001  one of them: each by itself
            pairs = []
            for one, counts in fresh:
                try:
                    with transaction.atomic():
                        pairs += [(one, row) for row in Decision.objects.bulk_create([_row(one, counts)])]
                except Exception as error:  # noqa: BLE001  it is told
                    faults["decision"] = told(clause("DecisionUnwritten", fault=of_error(error)))
        for one, row in pairs:
            try:
                self._keep(one, row)
            except Exception as error:  # noqa: BLE001  it is told
                faults["record"] = told(clause("DecisionUnrecorded", decision=row.pk, fault=of_error(error)))
        return [row for _, row in pairs]

    def _work(self) -> None:
        while True:
            self._news.wait()
            time.sleep(LAG_S)
            self._news.clear()
            try:
                rows = self.flush()
                if rows and self.shadow_is_due():
                    changes.request_shadows(rows[-1].pk)
            except Exception:
                logger.exception("a decision could not be written down; deciding goes on")
            finally:
                close_old_connections()

    def _is_news(self, one: Noted) -> bool:
        """Update the known reasons, and return whether anything was decided or any of them changed."""
        plan, is_news = one.cycle.plan, _decided(one)
        for wait in plan.waits:
            standing, known = key_facts(wait), self._known.get(wait.stage)
            if known != standing:
                is_news = True
                self._forget(wait.stage)
                self._known[wait.stage] = standing
                self._counts[standing[0]] += 1
        # Who left the queue by another way than a start (cancelled, say) changes nothing for the others by itself.
        if one.cycle.partial:
            for name in (*one.cycle.gone, *one.cycle.applied.started):
                self._forget(name)
        if not one.cycle.partial or len(self._known) > len(one.cycle.snapshot.waiting):
            waiting = {stage.id for stage in one.cycle.snapshot.waiting} - {start.stage for start in plan.starts}
            for name in self._known.keys() - waiting:
                self._forget(name)
        return is_news

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._counts[known[0]] -= 1

    def _keep(self, one: Noted, row: Decision) -> None:
        cycle = one.cycle
        names = {pool.name: pool.profile for pool in cycle.snapshot.pools}
        record = log.Record(
            id=row.pk,
            at=one.at,
            code=code.version(),
            profiles=names,
            specs={name: dict(spec_of(name)) for name in set(names.values())},
            snapshot=cycle.snapshot,
            plan=cycle.plan,
            digest=canonical.digest(cycle.plan),
            started=cycle.applied.started,
            stopped=cycle.applied.stopped,
            skipped=cycle.applied.skipped,
            took_s=round(one.took_s, 6),
            partial=cycle.partial,
        )
        try:
            self._writer.append(record)
        except OSError as error:
            logger.warning("decision %s has a row but no record: %s", row.pk, error)

    def shadow_is_due(self) -> bool:
        """Whether to replay the newest decision under shadow profiles now: rate limited, and only if a pool has one."""
        now = time.monotonic()
        if now - self._shadowed_at < SHADOW_EVERY_S:
            return False
        self._shadowed_at = now
        if Pool.objects.exclude(shadow_profile="").exists():
            return True
        alarms.raised(alarms.SHADOW, {})  # no pool has a shadow profile any more, so its alarm is cleared
        return False


def _decided(one: Noted) -> bool:
    """Return whether the cycle changed anything, or tried to."""
    applied = one.cycle.applied
    return bool(applied.started or applied.stopped or applied.skipped or one.cycle.plan.replanned)


def _row(one: Noted, counts: Mapping[str, int]) -> Decision:
    """Return the row that lists show of a cycle; ``counts`` are the waiting stages by their first reason."""
    snapshot, plan, applied = one.cycle.snapshot, one.cycle.plan, one.cycle.applied
    first = plan.waits[0] if plan.waits else None
    asked = {*applied.started, *applied.stopped, *applied.skipped, *(stop.stage for stop in plan.stops)}
    numbers = difference.named(snapshot, asked | ({first.stage} if first else set()))
    whys = {start.stage: {"why": start.why, "why_said": plain(start.said)} for start in plan.starts}
    stops = {stop.victim: stop for stop in plan.stops}
    return Decision(
        at=datetime.fromtimestamp(one.at, UTC),
        profile="+".join(sorted({pool.profile for pool in snapshot.pools}))[:100],
        code=code.version(),
        duration_ms=round(one.took_s * 1000, 3),
        waiting=len(snapshot.waiting),
        started=[{"stage": numbers[i], **whys[i]} for i in applied.started],
        evicted=[_stop_entry(stops[i], numbers) for i in applied.stopped],
        skipped=[numbers[i] for i in applied.skipped],
        waits={code: count for code, count in counts.items() if code and count},
        head={"stage": numbers[first.stage], "code": first.reasons[0].code} if first and first.reasons else {},
        replanned=plan.replanned[:300],
        replanned_said=plain(plan.replanned_said),
    )


def _stop_entry(stop: Stop, numbers: Mapping[str, str]) -> dict[str, Any]:
    """Return which stages were told to stop, for which stage and at what price."""
    told: dict[str, Any] = {
        "stage": numbers[stop.victim],
        "for": numbers.get(stop.stage or stop.victim),
        "price": stop.price,
        "gain": stop.gain,
    }
    if stop.why:
        told |= {"why": stop.why, "why_said": plain(stop.said)}
    if isinstance(stop, Resize):
        told["sizes"] = [stop.was, stop.size]
    return told


def forget_old() -> None:
    """Delete log entries beyond their age and size limits, and rows beyond theirs."""
    log.prune(settings.DECISIONS, time.time(), settings.DECISIONS_KEEP_S, settings.DECISIONS_KEEP_BYTES)


recorder = Recorder()


@atexit.register
def _last_words() -> None:
    if recorder._notes:
        try:
            recorder.flush()
        except Exception:  # noqa: BLE001  the database may be gone before this process
            logger.warning("the last decisions of this process were not written down")
