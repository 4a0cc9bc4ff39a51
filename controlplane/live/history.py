"""What finished work teaches the engine: how long stages run, how fast devices are, who used how much.

Read rarely and kept in the process: a cycle costs the same however much work has finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection

from scheduler.core.types import Estimate
from scheduler.predict import durations
from scheduler.predict.durations import Durations, Finished

REREAD_S = 20.0
REREAD_USAGE_S = 60.0
RECORDS = 2_000
HALF_LIFE_S = 7 * 86_400.0
# A core beside an accelerator: fair share counts what is scarce.
CORE_WEIGHT = 1 / 32

_FINISHED = """
SELECT p.name, j.name, s.name, s.kind, extract(epoch FROM a.ended_at - a.started_at)::float8,
       coalesce((a.estimate->>'speed')::float8, 1), extract(epoch FROM a.ended_at)::float8,
       (SELECT d.model FROM jobs_part t JOIN jobs_claim c ON c.part_id = t.id JOIN fleet_device d ON d.id = c.device_id
        WHERE t.attempt_id = a.id ORDER BY (d.kind = 'cpu'), d.id LIMIT 1)
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN jobs_attempt a ON a.stage_id = s.id AND a.number = s.attempt_count
WHERE s.state = 'COMPLETED' AND a.started_at IS NOT NULL AND s.attempt_count = 1
ORDER BY s.ended_at DESC LIMIT %s
"""
_USAGE = """
SELECT p.name, sum(c.milli / 1000.0 * CASE WHEN d.kind = 'cpu' THEN %s ELSE 1 END
       * extract(epoch FROM coalesce(c.closed_at, now()) - c.opened_at)
       * exp(-ln(2) * extract(epoch FROM now() - coalesce(c.closed_at, now())) / %s))::float8
FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id JOIN jobs_part t ON t.id = c.part_id
     JOIN jobs_attempt a ON a.id = t.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
     JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
WHERE c.opened_at > now() - make_interval(secs => %s) GROUP BY p.name
"""


class History:
    """Remembers finished work for as long as it is fresh enough."""

    def __init__(self) -> None:
        self._durations = Durations(())
        # Many stages ask the same; cleared with every reading.
        self._estimates: dict[tuple[Any, ...], Estimate] = {}
        self._speeds: Mapping[tuple[str, str], float] = {}
        self._read_at = self._usage_at = float("-inf")
        self._usage: dict[str, float] = {}

    def estimate(
        self, project: str, job_name: str, stage_name: str, kind: str, request: Mapping[str, Any], now: float
    ) -> Estimate:
        """How long such a stage will run, and what that rests on."""
        self.refreshed(now)
        asked = (project, f"{job_name}/{stage_name}", kind, request.get("expected_s"), request["time_limit_s"])
        known = self._estimates.get(asked)
        if known is None:
            *like, expected_s, limit_s = asked
            known = self._durations.estimate(*like, expected_s=expected_s, limit_s=limit_s)
            self._estimates[asked] = known
        return known

    def speeds(self, now: float) -> Mapping[tuple[str, str], float]:
        """Measured relative speeds by (stage kind, device model)."""
        self.refreshed(now)
        return self._speeds

    def usage(self, now: float) -> Mapping[str, float]:
        """Decayed device-seconds by project."""
        if now - self._usage_at > REREAD_USAGE_S:
            with connection.cursor() as cursor:
                cursor.execute(_USAGE, [CORE_WEIGHT, HALF_LIFE_S, 4 * HALF_LIFE_S])
                self._usage = dict(cursor.fetchall())
            self._usage_at = now
        return self._usage

    @staticmethod
    def as_estimate(stored: Mapping[str, Any]) -> Estimate:
        """The estimate with which an attempt was placed."""
        if not stored:
            return Estimate(3_600.0, 86_400.0)
        return Estimate(stored["p50_s"], stored["p90_s"], stored["basis"])

    def refreshed(self, now: float) -> bool:
        """Reads again what has finished if the last time is long ago; True where it did."""
        if now - self._read_at <= REREAD_S:
            return False
        with connection.cursor() as cursor:
            cursor.execute(_FINISHED, [RECORDS])
            rows = cursor.fetchall()
        finished = tuple(
            Finished(
                project=project,
                name=f"{job}/{stage}",
                kind=kind,
                ran_s=max(0.0, took),
                model=model or "",
                speed=speed,
                ended_at=ended_at,
            )
            for project, job, stage, kind, took, speed, ended_at, model in rows
        )
        self._durations, self._speeds = Durations(finished), durations.speeds(finished)
        self._estimates.clear()
        self._read_at = now
        return True
