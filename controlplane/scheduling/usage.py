"""Decayed device usage by project for fair share, kept up to date from claims opened or closed since the last read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import log
from operator import itemgetter
from typing import Any

from django.db import connection

from controlplane.fleet.world import parsed
from controlplane.scheduling.reread import Reread
from scheduler.core.resources import charges
from scheduler.core.resources.usage import HALF_LIFE_S, Usage

# Reads overlap by this much, because a row may become visible after a later one.
OVERLAP_S = 120.0
# Older usage counts less than a sixteenth and is not read.
REMEMBERED_S = 4 * HALF_LIFE_S

_OF_A_JOB = """
FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id JOIN jobs_part t ON t.id = c.part_id
     JOIN jobs_attempt a ON a.id = t.attempt_id
     JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
"""
_CLAIMS = f"""
SELECT c.id, j.project_id::text, d.kind, d.features::text, c.milli, extract(epoch FROM c.opened_at)::float8,
       extract(epoch FROM c.closed_at)::float8
{_OF_A_JOB} WHERE """
_RECENT = "c.closed_at IS NULL OR c.closed_at > to_timestamp(%s)"
_NEWS = "c.opened_at > to_timestamp(%s)", "c.closed_at > to_timestamp(%s)"
# What ended claims count at one time, in devices held for seconds, as :class:`Usage` computes it for one of them.
_ENDED = f"""
WITH until AS (SELECT %(until)s::float8 AS at, {HALF_LIFE_S / log(2)}::float8 AS mean_life)
SELECT j.project_id::text, d.kind, d.features::text, sum(c.milli / 1000.0::float8 * mean_life * (
    exp((extract(epoch FROM c.closed_at)::float8 - at) / mean_life)
    - exp(greatest(-700, (extract(epoch FROM c.opened_at)::float8 - at) / mean_life))))
{_OF_A_JOB} CROSS JOIN until
WHERE c.closed_at > to_timestamp(%(since)s) AND c.closed_at <= to_timestamp(%(until)s)
GROUP BY 1, 2, 3
"""


class UsageLedger(Reread):
    """Usage accounts by project id (not name: projects may be renamed)."""

    every_s = 5.0

    def __init__(self) -> None:
        self._accounts: dict[str, Usage] = {}
        self._open: dict[int, tuple[str, float]] = {}
        # Recently closed claims with the time they were seen, to skip rows read again in the overlap.
        self._closed: dict[int, float] = {}

    def used(self, now: float) -> Mapping[str, float]:
        """Return decayed device-seconds by project, weighted by the charge of each device."""
        self.ensure(now)
        return {project: account.at(now) for project, account in self._accounts.items()}

    def _read(self, now: float) -> None:
        rows: list[Any] = []
        with connection.cursor() as cursor:
            if self._read_at == float("-inf"):
                since = now - 2 * OVERLAP_S
                self._read_ended(cursor, now - REMEMBERED_S, since)
                recent: tuple[str, ...] = (_RECENT,)
            else:
                since, recent = self._read_at - OVERLAP_S, _NEWS
            for which in recent:
                cursor.execute(_CLAIMS + which, [since])
                rows += cursor.fetchall()
        for claim, project, kind, features, milli, opened_at, closed_at in sorted(rows, key=itemgetter(5, 0)):
            if claim in self._closed:
                continue
            if claim not in self._open:
                rate = milli * _charge(kind, features) / 1000
                self._open[claim] = (project, rate)
                self._change(project, opened_at, rate)
            if closed_at is not None:
                holder, rate = self._open.pop(claim)
                self._change(holder, closed_at, -rate)
                self._closed[claim] = now
        self._closed = {claim: at for claim, at in self._closed.items() if at > now - 2 * OVERLAP_S}

    def _read_ended(self, cursor: Any, since: float, until: float) -> None:
        """Sum up the claims that ended in this span, of which there may be millions."""
        cursor.execute(_ENDED, {"since": since, "until": until})
        for project, kind, features, held_s in cursor:
            before = self._accounts.get(project, Usage(as_of=until))
            self._accounts[project] = replace(before, amount=before.amount + held_s * _charge(kind, features))

    def _change(self, project: str, at: float, by: float) -> None:
        self._accounts[project] = self._accounts.get(project, Usage()).changed(at, by)


@lru_cache(maxsize=256)
def _charge(kind: str, features: str) -> float:
    return charges.of(kind, parsed(features))
