"""The numbers that stages report, kept by step: a bounded curve per name, however long and often it is reported.

One row per attempt. A report appends its numbers to the row's short ``tail``, which is cheap; a full tail is folded
into ``kept``, where each curve has at most ``POINTS`` points. A curve that grows beyond that is thinned: of neighbours
the lowest and the highest stay, so that no spike is lost.
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
# Beyond this a number of JSON is not exact, and no loop counts so far.
MOST_STEPS: Final = 2**53

Point = tuple[float, float]


class Curve(msgspec.Struct):
    """One curve: ``points`` as step and value, each pair standing for ``stride`` reports once that is above 1.

    ``bucket`` is how many reports came since the last pair, and their lowest and highest. ``last`` is the newest one.
    """

    points: list[Point] = []
    stride: int = 1
    bucket: tuple[int, list[Point]] = (0, [])
    last: Point | None = None
    reports: int = 0

    def add(self, step: float, value: float) -> None:
        """Takes one report; one of the same step as the last replaces it where nothing was thinned yet."""
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
        """Halves the points; the first stays, for a curve begins where it began."""
        first, *rest = self.points
        fours = [rest[at : at + 4] for at in range(0, len(rest), 4)]
        self.points = [first, *(point for four in fours for point in _extremes(four))]
        self.stride = 4 if self.stride == 1 else 2 * self.stride

    def drawn(self) -> list[Point]:
        """The points up to the newest report."""
        found = [*self.points, *self.bucket[1]]
        return found if self.last is None or (found and found[-1] == self.last) else [*found, self.last]


def _value(point: Point) -> float:
    return point[1]


def _extremes(points: Sequence[Point]) -> list[Point]:
    """The lowest and the highest of these points, in their order; one of them where they are the same."""
    low, high = min(points, key=_value), max(points, key=_value)
    if low == high:
        return [low]
    return [low, high] if points.index(low) <= points.index(high) else [high, low]


class Reported(NamedTuple):
    """Numbers that an attempt reported at a step."""

    attempt: uuid.UUID
    step: int
    values: Mapping[str, Any]


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """What of the reported values is a finite number with a name that can be shown."""
    found = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        if 0 < len(name) <= LONGEST_NAME and name.isprintable()
        if abs(value) <= 1e300 and math.isfinite(value)
    }
    return dict(list(found.items())[:NAMES])


_APPEND = """
INSERT INTO jobs_curves (attempt_id, tail, kept)
SELECT v.attempt, v.told, '{}' FROM unnest(%s::uuid[], %s::jsonb[]) AS v(attempt, told)
ON CONFLICT (attempt_id) DO UPDATE SET tail = jobs_curves.tail || excluded.tail
RETURNING attempt_id, jsonb_array_length(tail), (xmax = 0) AS is_new
"""
# A stage that is tried again and again keeps the curves of the newest attempts of its job.
_FORGET = """
DELETE FROM jobs_curves WHERE attempt_id IN (
    SELECT a.id FROM jobs_curves c JOIN jobs_attempt a ON a.id = c.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
    WHERE s.job_id = (SELECT t.job_id FROM jobs_attempt b JOIN jobs_stage t ON t.id = b.stage_id WHERE b.id = %s)
    ORDER BY a.created_at DESC, a.number DESC OFFSET %s)
"""


def append(reported: Iterable[Reported]) -> None:
    """Keeps these reports, at most one per attempt: one statement however many there are, and now and then a fold."""
    told = {
        each.attempt: [[each.step, found]]
        for each in reported
        if abs(each.step) < MOST_STEPS and (found := numbers(each.values))
    }
    if not told:
        return
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, [list(told), [json.dumps(one) for one in told.values()]])
        written = cursor.fetchall()
        for attempt, _length, is_new in written:
            if is_new:
                cursor.execute(_FORGET, [attempt, PER_JOB])
    for row in Curves.objects.filter(attempt__in=[attempt for attempt, length, _ in written if length >= TAIL]):
        row.kept = {name: msgspec.to_builtins(curve) for name, curve in whole(row).items()}
        row.tail = []
        row.save(update_fields=["kept", "tail"])


def whole(row: Curves) -> dict[str, Curve]:
    """The curves of an attempt up to its newest report, by name."""
    found = msgspec.convert(row.kept, dict[str, Curve])
    for step, values in row.tail:
        for name, value in values.items():
            if name in found or len(found) < NAMES:
                found.setdefault(name, Curve()).add(step, value)
    return found
