"""Learns from finished stages: duration predictions and relative device speeds.

Cached in the process, so the cost of a cycle does not grow with history.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import connection

from controlplane.clauses import Told, clause, of_error, told
from controlplane.scheduling.reread import Reread
from scheduler.core.model.types import Estimate
from scheduler.predict import speeds
from scheduler.predict.durations import Durations
from scheduler.predict.finished import Asked, Finished

# Reads overlap by this much, because a row may become visible after a later one.
OVERLAP_S = 120.0
RECORDS = 2_000
WITHIN = 200

# A resumed stage counts only if every attempt but the last left a checkpoint: otherwise the work done is unknown.
_FINISHED = """
SELECT s.id::text, p.name, u.username, j.name, s.name, s.kind, s.request,
       extract(epoch FROM a.ended_at - a.started_at)::float8
           + coalesce(k.kept_s, 0) / coalesce((a.estimate->>'speed')::float8, 1),
       coalesce((a.estimate->>'speed')::float8, 1), extract(epoch FROM a.ended_at)::float8,
       (SELECT trim(d.model || ' ' || c.partition)
        FROM jobs_part t JOIN jobs_claim c ON c.part_id = t.id JOIN fleet_device d ON d.id = c.device_id
        WHERE t.attempt_id = a.id ORDER BY (d.kind = 'cpu'), d.id LIMIT 1),
       CASE WHEN (f.estimate->>'known')::bool THEN (f.estimate->>'p90_s')::float8 END, o.name
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
     JOIN jobs_attempt a ON a.stage_id = s.id AND a.number = s.attempt_count
     JOIN jobs_attempt f ON f.stage_id = s.id AND f.number = 1
     LEFT JOIN LATERAL (
         SELECT sum(extract(epoch FROM c.at - b.started_at)::float8
                    * coalesce((b.estimate->>'speed')::float8, 1)) AS kept_s,
                bool_and(c.at IS NOT NULL) AS is_known
         FROM jobs_attempt b LEFT JOIN LATERAL (
             SELECT max(at) AS at FROM jobs_checkpoint WHERE attempt_id = b.id AND at >= b.started_at) c ON true
         WHERE b.stage_id = s.id AND b.number < s.attempt_count) k ON s.attempt_count > 1
WHERE s.state = 'COMPLETED' AND a.started_at IS NOT NULL AND (s.attempt_count = 1 OR k.is_known)
      AND s.ended_at > to_timestamp(%s)
ORDER BY s.ended_at DESC LIMIT %s
"""
# Running first attempts: censored observations for the prediction of alike stages.
_GOING = """
SELECT s.id::text, extract(epoch FROM a.started_at)::float8
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.ended_at IS NULL
WHERE s.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED') AND a.started_at IS NOT NULL AND a.number = 1
"""
_ASKED = """
SELECT s.id::text, p.name, u.username, j.name, s.name, s.kind, s.request
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id WHERE s.id = ANY(%s::uuid[])
"""


class History(Reread):
    """Caches what was learned from finished stages. ``serial`` counts how often that was read again."""

    every_s = 20.0

    def __init__(self) -> None:
        self._durations = Durations()
        self._finished: dict[str, Finished] = {}
        self._going: set[str] = set()
        self._newest_at = 0.0
        # Cached by request, because many are equal; cleared with every reread.
        self._estimates: dict[Asked, Estimate] = {}
        self._speeds: Mapping[tuple[str, str], float] = {}
        self.serial = 0
        # For the newest predicted stages of each pool: whether they ended by their P90.
        self._within: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=WITHIN))
        # Finished stages with invalid rows: name to reason.
        self.aside: dict[str, Told] = {}

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """By pool: (stages that ended by their predicted P90, predicted stages)."""
        return {pool: (sum(within), len(within)) for pool, within in self._within.items()}

    def estimate(
        self,
        project: str,
        job_name: str,
        stage_name: str,
        kind: str,
        request: Mapping[str, Any],
        now: float,
        user: str = "",
    ) -> Estimate:
        """Predict how long such a stage runs, with the basis of the prediction."""
        self.ensure(now)
        asked = _asked(project, user, job_name, stage_name, kind, request)
        known = self._estimates.get(asked)
        if known is None:
            known = self._estimates[asked] = self._durations.estimate(asked, now)
        return known

    def speeds(self, now: float) -> Mapping[tuple[str, str], float]:
        """Return measured relative speeds by (stage kind, device model)."""
        self.ensure(now)
        return self._speeds

    @staticmethod
    def as_estimate(stored: Mapping[str, Any]) -> Estimate:
        """Convert the stored estimate of an attempt."""
        if not stored:
            return Estimate(3_600.0, 86_400.0)
        known, runs = stored.get("known", True), stored.get("runs", 0)
        return Estimate(stored["p50_s"], stored["p90_s"], stored["basis"], known=known, runs=runs)

    def _read(self, now: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_FINISHED, [self._newest_at - OVERLAP_S, RECORDS])
            rows = cursor.fetchall()
            cursor.execute(_GOING)
            going = dict(cursor.fetchall())
        self.aside = {}
        fresh = []
        for *row, upper_s, pool in reversed(rows):  # oldest first, because learning is in order of time
            try:
                one = _finished(row)
                if one.id not in self._finished:
                    self._finished[one.id] = one
                    fresh.append(one)
                    if upper_s is not None:
                        self._within[pool].append(one.work_s <= upper_s + 1.0)
                    self._newest_at = max(self._newest_at, one.ended_at)
            except Exception as error:  # noqa: BLE001  one row that cannot be used stops nobody else
                self.aside[f"{row[3]}/{row[4]}"] = _unlearned(error)
        found = speeds.settled(self._speeds, speeds.speeds(self._finished.values()))
        if found != self._speeds:
            # Work is measured in seconds at speed 1, so changed speeds require relearning everything.
            self._speeds, self._durations, self._going = found, Durations(), set()
            fresh = list(self._finished.values())
        for one in fresh:
            try:
                self._durations.learn(replace(one, speed=self._speeds.get((one.kind, one.model), one.speed)))
            except Exception as error:  # noqa: BLE001
                self.aside[f"{one.project}/{one.name}"] = _unlearned(error)
        for name in list(self._finished)[: max(0, len(self._finished) - RECORDS)]:
            if self._finished[name].ended_at < self._newest_at - OVERLAP_S:  # the others will be read once more
                del self._finished[name]
        self._watch(going)
        self._estimates = {}
        self.serial += 1

    def _watch(self, going: Mapping[str, float]) -> None:
        """Update the running stages: their start times, and those that stopped running without completing."""
        for name in sorted(self._going - going.keys()):
            self._durations.leave(name)
        is_first = not self._going
        fresh = sorted(going.keys() - self._going, key=lambda name: (going[name], name))
        if fresh:
            with connection.cursor() as cursor:
                cursor.execute(_ASKED, [fresh])
                asked = {
                    name: _asked(project, user, job, stage, kind, _parsed(request))
                    for name, project, user, job, stage, kind, request in cursor.fetchall()
                }
            for name in fresh:
                if name in asked:
                    self._durations.begin(name, going[name], asked[name], is_late=is_first)
        self._going = set(going)


def _parsed(request: Any) -> Any:
    return json.loads(request) if isinstance(request, str) else request


def _asked(project: str, user: str, job: str, stage: str, kind: str, request: Mapping[str, Any]) -> Asked:
    return Asked(
        project=project,
        name=f"{job}/{stage}",
        kind=kind,
        user=user,
        resources=_resources(request),
        limit_s=request["time_limit_s"],
        expected_s=request.get("expected_s"),
    )


def _finished(row: Sequence[Any]) -> Finished:
    name, project, user, job, stage, kind, request, took, speed, ended_at, model = row
    request = _parsed(request)
    return Finished(
        project=project,
        name=f"{job}/{stage}",
        kind=kind,
        ran_s=max(0.0, took),
        # An elastic stage is faster because of its size, not its device.
        model="" if "least_nodes" in request else model or "",
        speed=speed,
        ended_at=ended_at,
        user=user,
        resources=_resources(request),
        limit_s=request["time_limit_s"],
        expected_s=request.get("expected_s"),
        id=name,
    )


def _resources(request: Mapping[str, Any]) -> str:
    """Return a request's resources as a canonical text."""
    ways = [[(ask["kind"], ask["count"], ask["milli"], ask.get("model", "")) for ask in way["asks"]]
            for way in request["alternatives"]]  # fmt: skip
    return f"{request['nodes']} {ways}"


def _unlearned(error: Exception) -> Told:
    return told(clause("NothingLearned", fault=of_error(error)))
