"""Stores why pending stages wait, their expected start and reservation, wherever these changed.

With few pending stages each cycle evaluates all of them. With many it evaluates those that are new or changed, those
whose reservation changed, and a share of the others in turn; the rest follows between the cycles.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec
from django.db import DataError, IntegrityError, connection, transaction

from controlplane import changes
from controlplane.clauses import Told, clause, of_error, told, verbatim
from controlplane.jobs import basis
from controlplane.providers.coming import ComingNodes
from controlplane.scheduling.durations import DurationForecast, Held
from scheduler.core.model.kinds import is_amount
from scheduler.core.model.reasons import CATALOGUE, sentence
from scheduler.core.model.types import Expected, News, Node, Plan, Promise, Reason, Snapshot, Stage, Wait
from scheduler.core.world.lateness import promise_class
from scheduler.predict.starts import first

ACTS = {entry.code: entry.acts for entry in CATALOGUE}
# Seconds between refreshes of a stage's reasons; a new primary reason or a moved reservation is written at once.
REFRESH_S = 5.0
WRITES_PER_CYCLE = 400
# Above this many pending stages, a cycle evaluates no more than it may write, plus those whose reservation changed.
MOST_AT_ONCE = 2_000
# Evaluations per pass between two cycles; a wake that arrives meanwhile waits for the pass to end.
LOOKS_BETWEEN = 100
# Evaluations per cycle of stages without an urgent change; the others follow in later cycles.
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
    """What was last written of a pending stage (digest and time), and when it was last evaluated."""

    urgent: Any
    whole: bytes
    at: float
    looked_at: float


def moment(at: float) -> str:
    """Format an engine time (seconds since the epoch) as RFC 3339."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WaitingReasons:
    """Decides which stages to evaluate, and writes what differs from before. One per store."""

    def __init__(self) -> None:
        # By stage, least recently evaluated first; stages that changed since come before those.
        self._written: OrderedDict[str, _Written] = OrderedDict()
        # Stages never evaluated, newest last; ``None`` before the first cycle.
        self._soon: dict[str, None] | None = None
        # Stages whose write failed (evaluated in every cycle), and those requested last.
        self._failing: set[str] = set()
        self._asked: set[str] | None = None
        self._aside: set[str] = set()
        # When a cycle last saw or made a change.
        self._changed_at = float("-inf")
        self._is_stirred = False
        self._coming = ComingNodes()
        self._scene: (
            tuple[tuple[Node, ...], Mapping[tuple[str, str], float], dict[str, str], DurationForecast] | None
        ) = None

    def note_changes(self, news: News) -> None:
        """Note what changed since the last cycle."""
        self._is_stirred |= bool(news.waiting or news.running or news.nodes)
        for name, stage in news.waiting.items():
            if stage is None:
                self._written.pop(name, None)
                self._failing.discard(name)
            if self._soon is not None:
                self._soon.pop(name, None)
            if stage is None:
                continue
            if name in self._written:
                self._written[name].looked_at = float("-inf")
                self._written.move_to_end(name, last=False)
            elif self._soon is not None:
                self._soon[name] = None

    def due(self, snapshot: Snapshot, plan: Plan | None, now: float) -> set[str] | None:
        """Return the stages to evaluate now; ``None`` for all, if few are pending.

        Otherwise those that the plan names, the newest arrivals, changed ones, then the least recently evaluated.
        Without a plan (between cycles) only stages that were not evaluated since the last change.
        """
        if self._soon is None:
            first = sorted(snapshot.waiting, key=lambda stage: stage.submitted_at)
            self._soon = {stage.id: None for stage in first if stage.id not in self._written}
        if plan is not None and (self._is_stirred or plan.starts or plan.stops):
            self._changed_at, self._is_stirred = now, False
        self._asked = None
        if len(snapshot.waiting) <= MOST_AT_ONCE:
            return None
        # Half of them are for those in turn, however much there is news of.
        most = WRITES_PER_CYCLE if plan is not None else min(LOOKS_BETWEEN, WRITES_PER_CYCLE)
        names = set(islice(reversed(self._soon), most - most // 2 if self._written else most))
        for name, was in self._written.items():
            is_fresh = was.looked_at >= self._changed_at and (plan is None or now - was.looked_at < REFRESH_S)
            if is_fresh or len(names) >= most:
                break
            names.add(name)
        if plan is not None:
            names |= self._failing | {wait.stage for wait in plan.waits}
        self._asked = names
        return names

    @property
    def is_behind(self) -> bool:
        """Whether some stages were not evaluated since the last change."""
        if self._asked is None:
            return False
        oldest = next(iter(self._written.values()), None)
        return bool(self._soon) or (oldest is not None and oldest.looked_at < self._changed_at)

    def write(
        self,
        snapshot: Snapshot,
        plan: Plan,
        now: float,
        stages: Mapping[str, Stage],
        held: Held,
        faults: dict[str, Told] | None = None,
    ) -> None:
        """Write what the cycle says of the evaluated ``stages``, where it changed.

        ``held`` counts by pool how many of how many stages ended by their predicted P90. Stages whose reasons cannot
        be written are noted in ``faults``.
        """
        faults = {} if faults is None else faults
        names, lengths = self._of(snapshot, held)
        news: list[tuple[str, ...]] = []
        told: dict[int, dict[str, Any]] = {}
        self._coming.refresh(now)
        looks = self._looks(plan, stages, now)
        left: list[str] = []
        for i, (wait, urgent) in enumerate(looks):
            was = self._written.get(wait.stage)
            if was is not None:
                was.looked_at = now
                self._written.move_to_end(wait.stage)
            try:
                row = _row(wait, names, stages[wait.stage], lengths, told)
            except Exception as error:  # noqa: BLE001  what cannot be said of one stage keeps nobody from the others
                faults[_named(stages[wait.stage])] = _unwritten(of_error(error))
                self._failing.add(wait.stage)
                continue
            self._failing.discard(wait.stage)
            whole = hashlib.blake2b("".join(row[1:-1]).encode(), digest_size=16).digest()
            if was is not None and was.urgent == urgent and was.whole == whole and now - was.at < 30:
                continue
            self._written[wait.stage] = _Written(urgent, whole, now, now)
            self._written.move_to_end(wait.stage)
            news.append(row)
            if len(news) >= WRITES_PER_CYCLE:
                left = [other.stage for other, _ in looks[i + 1 :]]
                break
        if news:
            self._send(news, now, stages, faults)
        self._note_looked({wait.stage for wait, _ in looks}, left)

    def _note_looked(self, looked: set[str], left: Sequence[str]) -> None:
        """Remove evaluated stages from the new arrivals, except those in ``left``."""
        if self._soon is None:
            return
        for name in looked | (self._asked or set()):
            self._soon.pop(name, None)
        self._soon |= dict.fromkeys(left)

    def _of(self, snapshot: Snapshot, held: Held) -> tuple[dict[str, str], DurationForecast]:
        """Return node names and duration forecast of this snapshot, cached while nodes and speeds stay the same."""
        known = self._scene
        if known is None or known[0] is not snapshot.nodes or known[1] != snapshot.speeds:
            names = {node.id: node.name for node in snapshot.nodes}
            known = self._scene = (snapshot.nodes, snapshot.speeds, names, DurationForecast(snapshot))
        known[3].held = held
        return known[2], known[3]

    @staticmethod
    def _send(
        news: Sequence[tuple[str, ...]], now: float, stages: Mapping[str, Stage], faults: dict[str, Told]
    ) -> None:
        """Write the rows (one by one if the batch fails) and announce the jobs as changed."""
        try:
            _write(news, now)
        except (DataError, IntegrityError):
            for row in news:
                try:
                    _write([row], now)
                except (DataError, IntegrityError) as error:
                    faults[_named(stages[row[0]])] = _unwritten(verbatim(str(error)))
        keys = sorted({f"job:{stages[row[0]].number}" for row in news})[:50]
        changes.announce("jobs", "timeline", *keys)

    def _looks(self, plan: Plan, stages: Mapping[str, Stage], now: float) -> list[tuple[Wait, Any]]:
        """Yield the stages to evaluate, each with its urgent values, in this order.

        First those whose promise or first reason changed; then those never evaluated, promised ones first, then the
        newest; then, of those evaluated long ago, the requested ones or else a few.
        """
        fresh, moved, old = [], [], []
        for wait in plan.waits:
            if wait.stage not in stages:
                continue
            wait = self._with_coming(wait, stages[wait.stage])
            was, urgent = self._written.get(wait.stage), key_facts(wait)
            if was is None:
                fresh.append((wait, urgent))
            elif was.urgent != urgent:
                moved.append((wait, urgent))
            elif self._asked is not None or now - was.looked_at >= REFRESH_S:
                old.append((wait, urgent))
        # A promise that is not written is made anew in the next cycle.
        fresh.sort(key=lambda look: (look[0].planned is None, -stages[look[0].stage].submitted_at))
        return [*moved, *fresh, *(old if self._asked is not None else old[:LOOKS_PER_CYCLE])]

    def _with_coming(self, wait: Wait, stage: Stage) -> Wait:
        """Return the wait with the reason that a provider is bringing a node for the stage, if one is."""
        reasons = self._coming.told(stage, wait.reasons)
        return wait if reasons is wait.reasons else replace(wait, reasons=reasons)

    def set_aside(self, stages: Mapping[str, int], now: float) -> None:
        """Write for stages that cannot be planned that they are set aside. ``stages`` maps their ids to job numbers."""
        if self._soon is not None:
            self._soon |= dict.fromkeys(self._aside - stages.keys())
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
    """Return the range in which a stage will probably start, as people are shown it; None if it is not useful."""
    return (
        {
            "low_at": moment(expected.low_at),
            "high_at": moment(expected.high_at),
            **basis.plain(expected.basis),
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
    """Write these rows: the id of a stage and the values of the other columns as JSON.

    All rows are sent as one text, which costs the driver a third of what arrays do.
    """
    rows = (
        ",".join(f'"{name}":{value}' for name, value in zip(_COLUMNS, (f'"{stage}"', *values), strict=True))
        for stage, *values in news
    )
    text = "[" + ",".join(f"{{{row}}}" for row in rows) + "]"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_REPORT, [datetime.fromtimestamp(now, UTC), text])


def _row(
    wait: Wait, names: dict[str, str], stage: Stage, lengths: DurationForecast, told: dict[int, dict[str, Any]]
) -> tuple[str, ...]:
    """Return the columns of a stage. ``told`` caches reasons in words by identity, because alike stages share them."""
    for reason in wait.reasons:
        if id(reason) not in told:
            told[id(reason)] = _reason(reason)
    reasons = [told[id(reason)] for reason in wait.reasons]
    planned = wait.planned and {
        "start_at": moment(wait.planned.start_at),
        "late_at": moment(wait.planned.late_at),
        "end_at": moment(wait.planned.end_at),
        "nodes": [names.get(node, "?") for node in wait.planned.placement.nodes],
        "devices": sorted(
            {one.device for grants in wait.planned.placement.grants for one in grants if not is_amount(one.device)}
        ),
    }
    promise = msgspec.to_builtins(wait.planned) if wait.planned else None
    first_promise = _first_promise(stage, wait.planned) if wait.planned else None
    lasts = lengths.plain(stage, wait.planned.placement if wait.planned else None)
    announced = msgspec.to_builtins(first(stage, wait.expected)) if wait.expected else None
    funnel = [list(step) for step in wait.funnel]
    values = (reasons, funnel, shown(wait.expected), planned, promise, first_promise, lasts, announced)
    return (wait.stage, *(msgspec.json.encode(value).decode() for value in values))


def _first_promise(stage: Stage, promise: Promise) -> dict[str, Any]:
    """Return what is stored of the first promise to a stage."""
    return {"start_at": promise.start_at, "late_at": promise.late_at, "of": promise_class(stage)[1]}


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "params": dict(reason.params),
        "text": sentence(reason),
        "acts": ACTS[reason.code],
    }


def key_facts(wait: Wait) -> Any:
    """Return the first reason and the reservation; a change of these is written and recorded at once."""
    planned = wait.planned
    return (
        wait.reasons[0].code if wait.reasons else "",
        planned and (round(planned.start_at), planned.placement),
    )


def _unwritten(fault: Told) -> Told:
    return told(clause("ReasonUnwritten", fault=fault))
