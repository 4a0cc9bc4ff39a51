"""Metrics that stages report, stored by step as one bounded curve per name, however many reports come.

There is one row per attempt. A report appends its numbers to the row's short ``tail``, which is cheap; a full tail is
folded into ``kept``, where each curve has at most ``POINTS`` points. A curve that grows beyond that is thinned: of
neighbouring points the lowest and the highest are kept, so that no spike is lost.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from django.db import connection

from controlplane.jobs.models import Curves

POINTS: Final = 300
NAMES: Final = 16
LONGEST_NAME: Final = 64
PER_JOB: Final = 16
TAIL: Final = 64
# Reported steps with their times: so many, and so many seconds apart. They tell how fast an attempt is now.
MARKS: Final = 40
MARK_EVERY_S: Final = 15.0
# Beyond this an integer in JSON is not exact, and no training loop counts so far.
MOST_STEPS: Final = 2**53

Point = tuple[float, float]


class Curve(msgspec.Struct):
    """One curve: ``points`` are pairs of step and value; each pair stands for ``stride`` reports if that is above 1.

    ``bucket`` is the number of reports since the last pair, and the lowest and the highest of them. ``last`` is the
    newest report.
    """

    points: list[Point] = []
    stride: int = 1
    bucket: tuple[int, list[Point]] = (0, [])
    last: Point | None = None
    reports: int = 0

    def add(self, step: float, value: float) -> None:
        """Add one report; it replaces the last one if both have the same step and nothing was thinned yet."""
        point = (step, value)
        again = self.last is not None and self.last[0] == step
        self.last = point
        if self.stride == 1:
            self.points[-1 if again else len(self.points) :] = [point]
            self.reports += 0 if again else 1
        else:
            self.reports += 1
            count, extremes = self.bucket
            self.bucket = (count + 1, _extremes([*extremes, point]))
            if self.bucket[0] >= self.stride:
                self.points += self.bucket[1]
                self.bucket = (0, [])
        if len(self.points) > POINTS:
            self._thin()

    def _thin(self) -> None:
        """Halve the number of points. The first point is always kept, as the start of the curve."""
        first, *rest = self.points
        fours = [rest[at : at + 4] for at in range(0, len(rest), 4)]
        self.points = [first, *(point for four in fours for point in _extremes(four))]
        self.stride = 4 if self.stride == 1 else 2 * self.stride

    def drawn(self) -> list[Point]:
        """Return the points to draw, up to the newest report."""
        found = [*self.points, *self.bucket[1]]
        return found if self.last is None or (found and found[-1] == self.last) else [*found, self.last]


def _value(point: Point) -> float:
    return point[1]


def _extremes(points: Sequence[Point]) -> list[Point]:
    """Return the lowest and the highest of these points in their order, or one point if they are the same."""
    low, high = min(points, key=_value), max(points, key=_value)
    if low == high:
        return [low]
    return [low, high] if points.index(low) <= points.index(high) else [high, low]


class Reported(NamedTuple):
    """Numbers that an attempt reported at one step, at a time in seconds since the epoch."""

    attempt: uuid.UUID
    step: int
    values: Mapping[str, Any]
    at: float


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the reported values that are finite numbers and have a printable name."""
    found = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        if 0 < len(name) <= LONGEST_NAME and name.isprintable()
        if abs(value) <= 1e300 and math.isfinite(value)
    }
    return dict(list(found.items())[:NAMES])


_APPEND = """
INSERT INTO jobs_curves (attempt_id, tail, kept, marks)
SELECT v.attempt, v.told, '{}', v.mark FROM unnest(%(attempts)s::uuid[], %(told)s::jsonb[], %(marks)s::jsonb[])
    AS v(attempt, told, mark)
ON CONFLICT (attempt_id) DO UPDATE SET tail = jobs_curves.tail || excluded.tail, marks = CASE
    WHEN (jobs_curves.marks->-1->>0)::float8 > (excluded.marks->0->>0)::float8 - %(every_s)s THEN jobs_curves.marks
    WHEN jsonb_array_length(jobs_curves.marks) >= %(most)s THEN (jobs_curves.marks - 0) || excluded.marks
    ELSE jobs_curves.marks || excluded.marks END
RETURNING attempt_id, jsonb_array_length(tail), (xmax = 0) AS is_new
"""
# Only the newest attempts of a job keep their curves.
_FORGET = """
DELETE FROM jobs_curves WHERE attempt_id IN (
    SELECT a.id FROM jobs_curves c JOIN jobs_attempt a ON a.id = c.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
    WHERE s.job_id = (SELECT t.job_id FROM jobs_attempt b JOIN jobs_stage t ON t.id = b.stage_id WHERE b.id = %s)
    ORDER BY a.created_at DESC, a.number DESC OFFSET %s)
"""


def append(reported: Iterable[Reported]) -> None:
    """Store these reports, at most one per attempt, in one statement; full tails are folded."""
    told = {each.attempt: each for each in reported if abs(each.step) < MOST_STEPS}
    if not told:
        return
    points = {i: [[one.step, found]] if (found := numbers(one.values)) else [] for i, one in told.items()}
    values: dict[str, Any] = {
        "attempts": list(told),
        "told": [json.dumps(one) for one in points.values()],
        "marks": [json.dumps([[round(one.at, 3), one.step]]) for one in told.values()],
        "every_s": MARK_EVERY_S,
        "most": MARKS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, values)
        written = cursor.fetchall()
        for attempt, _length, is_new in written:
            if is_new:
                cursor.execute(_FORGET, [attempt, PER_JOB])
    for row in Curves.objects.filter(attempt__in=[attempt for attempt, length, _ in written if length >= TAIL]):
        row.kept = {name: msgspec.to_builtins(curve) for name, curve in whole(row).items()}
        row.tail = []
        row.save(update_fields=["kept", "tail"])


def whole(row: Curves) -> dict[str, Curve]:
    """Return the curves of an attempt by name, up to its newest report."""
    found = msgspec.convert(row.kept, dict[str, Curve])
    for step, values in row.tail:
        for name, value in values.items():
            if name in found or len(found) < NAMES:
                found.setdefault(name, Curve()).add(step, value)
    return found
