"""What each cycle says of the stages that wait, written where it is news."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import DataError, IntegrityError, connection, transaction

from controlplane import changes
from controlplane.live.lengths import Held, Lengths
from scheduler.core.model.reasons import CATALOGUE, sentence
from scheduler.core.model.types import Expected, Plan, Promise, Reason, Snapshot, Stage, Wait
from scheduler.core.world.lateness import promise_class
from scheduler.predict.starts import first

ACTS = {entry.code: entry.acts for entry in CATALOGUE}
# What people read of a waiting stage is refreshed this often; a new first reason or a moved entry is written at once.
REFRESH_S = 5.0
WRITES_PER_CYCLE = 400
# So many are put into words in one cycle though nothing urgent of them changed; the others follow in the next ones.
LOOKS_PER_CYCLE = 1_000

_REPORT = """
UPDATE jobs_stage s SET reasons = v.reasons, funnel = v.funnel, expected = v.expected, planned = v.planned,
    promise = v.promise, lasts = v.lasts, evaluated_at = %s,
    first_promise = coalesce(s.first_promise, v.first_promise),
    announced = CASE WHEN s.attempt_count = 0 THEN coalesce(s.announced, v.announced) ELSE s.announced END
FROM jsonb_to_recordset(%s::jsonb) AS v(id uuid, reasons jsonb, funnel jsonb, expected jsonb, planned jsonb,
                                        promise jsonb, first_promise jsonb, lasts jsonb, announced jsonb)
WHERE s.id = v.id AND s.state IN ('HELD', 'PENDING')
"""


@dataclass(slots=True)
class _Written:
    """What was last written of a waiting stage, when, and when it was last looked at."""

    urgent: Any
    whole: bytes
    at: float
    looked_at: float


def moment(at: float) -> str:
    """An engine time as the API shows it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Reports:
    """Remembers what was written last. One per store."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}
        self._aside: set[str] = set()

    def write(
        self, snapshot: Snapshot, plan: Plan, now: float, held: Held, faults: dict[str, str] | None = None
    ) -> None:
        """Writes what the cycle says of each stage that waits, where that is news. ``held`` says by pool how many of
        how many stages ended by what was predicted of them; of whom it cannot be written is told in ``faults``."""
        faults = {} if faults is None else faults
        stages = {stage.id: stage for stage in snapshot.waiting}
        names, lengths = {node.id: node.name for node in snapshot.nodes}, Lengths(snapshot, held)
        news: list[tuple[str, ...]] = []
        told: dict[int, dict[str, Any]] = {}
        for wait in self._due(plan, stages, now):
            was, urgent = self._written.get(wait.stage), _urgent(wait)
            same = was is not None and was.urgent == urgent
            if was is not None:
                was.looked_at = now
            try:
                row = _row(wait, names, stages[wait.stage], lengths, told)
            except Exception as error:  # noqa: BLE001  what cannot be said of one stage keeps nobody from the others
                faults[_named(stages[wait.stage])] = f"why it waits cannot be written: {type(error).__name__}: {error}"
                continue
            whole = hashlib.blake2b("".join(row[1:-1]).encode(), digest_size=16).digest()
            if same and was is not None and was.whole == whole and now - was.at < 30:
                continue
            self._written[wait.stage] = _Written(urgent, whole, now, now)
            news.append(row)
            if len(news) >= WRITES_PER_CYCLE:
                break
        for gone in [i for i in self._written if i not in stages] if len(self._written) > len(stages) else ():
            del self._written[gone]
        if not news:
            return
        try:
            _write(news, now)
        except (DataError, IntegrityError):
            for row in news:
                try:
                    _write([row], now)
                except (DataError, IntegrityError) as error:
                    faults[_named(stages[row[0]])] = f"why it waits cannot be written: {error}"
        keys = sorted({f"job:{stages[row[0]].number}" for row in news})[:50]
        changes.announce("jobs", "timeline", *keys)

    def _due(self, plan: Plan, stages: Mapping[str, Stage], now: float) -> list[Wait]:
        """Whom to look at, in this order: who was promised otherwise or waits for another reason, who was never told
        why (first who was promised something, then the last to come, for their users look), and some of those whose
        telling is old."""
        fresh, moved, old = [], [], []
        for wait in plan.waits:
            was = self._written.get(wait.stage)
            if was is None:
                fresh.append(wait)
            elif was.urgent != _urgent(wait):
                moved.append(wait)
            elif now - was.looked_at >= REFRESH_S:
                old.append(wait)
        # A promise that is not written is made anew in the next cycle.
        fresh.sort(key=lambda wait: (wait.planned is None, -stages[wait.stage].submitted_at))
        return [*moved, *fresh, *old[:LOOKS_PER_CYCLE]]

    def set_aside(self, stages: Mapping[str, int], now: float) -> None:
        """Writes of stages that no cycle can take up that they are set aside; the numbers of their jobs by stage."""
        self._aside.intersection_update(stages)
        news = [stage for stage in stages if stage not in self._aside][:WRITES_PER_CYCLE]
        if not news:
            return
        why = json.dumps([_reason(Reason("SetAside"))])
        _write([(stage, why, "[]", *["null"] * 6) for stage in news], now)
        self._aside.update(news)
        for stage in news:
            self._written.pop(stage, None)
        changes.announce("jobs", "timeline", *sorted({f"job:{stages[stage]}" for stage in news})[:50])


def shown(expected: Expected | None) -> dict[str, Any] | None:
    """The range in which a stage will probably start, as people are told; None where none is of use."""
    return (
        {
            "low_at": moment(expected.low_at),
            "high_at": moment(expected.high_at),
            "basis": expected.basis,
            "held": expected.held,
            "seen": expected.seen,
        }
        if expected and expected.known
        else None
    )


def _named(stage: Stage) -> str:
    return f"#{stage.number} {stage.name}"


_COLUMNS = ("id", "reasons", "funnel", "expected", "planned", "promise", "first_promise", "lasts", "announced")


def _write(news: Sequence[tuple[str, ...]], now: float) -> None:
    """Writes these rows: the id of a stage, and what the other columns get, as JSON. All of it goes as one text, which
    costs the driver a third of what arrays do."""
    rows = (
        ",".join(f'"{name}":{value}' for name, value in zip(_COLUMNS, (f'"{stage}"', *values), strict=True))
        for stage, *values in news
    )
    text = "[" + ",".join(f"{{{row}}}" for row in rows) + "]"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_REPORT, [datetime.fromtimestamp(now, UTC), text])


def _row(
    wait: Wait, names: dict[str, str], stage: Stage, lengths: Lengths, told: dict[int, dict[str, Any]]
) -> tuple[str, ...]:
    """The columns of a stage. ``told`` are reasons in words, by identity: alike stages share them."""
    for reason in wait.reasons:
        if id(reason) not in told:
            told[id(reason)] = _reason(reason)
    reasons = [told[id(reason)] for reason in wait.reasons]
    planned = wait.planned and {
        "start_at": moment(wait.planned.start_at),
        "late_at": moment(wait.planned.late_at),
        "end_at": moment(wait.planned.end_at),
        "nodes": [names.get(node, "?") for node in wait.planned.placement.nodes],
        "devices": sorted({grant.device for grants in wait.planned.placement.grants for grant in grants}),
    }
    promise = msgspec.to_builtins(wait.planned) if wait.planned else None
    first_promise = _first_promise(stage, wait.planned) if wait.planned else None
    lasts = lengths.told(stage, wait.planned.placement if wait.planned else None)
    announced = msgspec.to_builtins(first(stage, wait.expected)) if wait.expected else None
    funnel = [list(step) for step in wait.funnel]
    values = (reasons, funnel, shown(wait.expected), planned, promise, first_promise, lasts, announced)
    return (wait.stage, *(msgspec.json.encode(value).decode() for value in values))


def _first_promise(stage: Stage, promise: Promise) -> dict[str, Any]:
    """What is kept of the first promise to a stage."""
    return {"start_at": promise.start_at, "late_at": promise.late_at, "of": promise_class(stage)[1]}


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "params": dict(reason.params),
        "text": sentence(reason),
        "acts": ACTS[reason.code],
    }


def _urgent(wait: Wait) -> Any:
    """What must be written at once when it changes: the first reason, and the entry that people were promised."""
    planned = wait.planned
    return (
        wait.reasons[0].code if wait.reasons else "",
        planned and (round(planned.start_at), planned.placement),
    )
