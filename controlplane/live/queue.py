"""The rows of stages that wait, as the engine sees them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec

from controlplane.fleet.world import parsed
from controlplane.jobs import demand
from controlplane.live import residence
from controlplane.live.history import History
from controlplane.live.known import Known, pinned
from controlplane.live.scaling import Scaling
from scheduler.core.lifecycle import State
from scheduler.core.types import SCALING, Promise, Stage

# A row's xmin changes with every update of it: what did not change since the last cycle is not read again.
_VERSIONS = "SELECT id, xmin::text FROM jobs_stage WHERE state IN ('HELD', 'PENDING')"
_WAITING = """
SELECT s.id, j.id::text, j.number, s.name, p.name, u.username, o.name, s.kind, j.priority, j.priority_class,
       extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM s.eligible_at)::float8, s.state,
       extract(epoch FROM s.begin_at)::float8, extract(epoch FROM s.retry_at)::float8, s.failures, s.max_attempts,
       s.held_by, s.promise, j.name,
       j.bundle <> '' AND NOT EXISTS (SELECT 1 FROM jobs_bundle b WHERE b.sha256 = j.bundle), s.attempt_count,
       s.request, s.xmin::text
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.id = ANY(%s) AND s.state IN ('HELD', 'PENDING')
"""
_UNMET = """
SELECT n.from_stage_id, n.to_stage_id::text, t.state
FROM jobs_stage s JOIN jobs_stage_needs n ON n.from_stage_id = s.id JOIN jobs_stage t ON t.id = n.to_stage_id
WHERE s.state IN ('HELD', 'PENDING') AND t.state <> 'COMPLETED'
"""


class Queue:
    """Reads the stages that wait, and again only those whose rows changed since."""

    def __init__(self, known: Known, history: History, scaling: Scaling) -> None:
        self._known, self._history, self._scaling = known, history, scaling
        self._stages: dict[uuid.UUID, tuple[str, Stage]] = {}
        # What predictions go by: project, names of job and stage, kind, request, user.
        self._asked: dict[uuid.UUID, tuple[str, str, str, str, Any, str]] = {}
        self._dependent: set[uuid.UUID] = set()
        # Stages whose rows cannot be used, with the reason; as of the last reading.
        self.aside: dict[str, str] = {}
        # The numbers of their jobs, by stage.
        self.unusable: dict[str, int] = {}

    @property
    def ids(self) -> set[uuid.UUID]:
        """The stages that it remembers."""
        return set(self._stages)

    def read(self, cursor: Any, now: float, *, pinning: bool) -> tuple[Stage, ...]:
        """All that wait, or are held. ``pinning``: some pool has no shared storage."""
        self.aside, self.unusable = {}, {}
        if self._history.refreshed(now):
            self._foresee(now)
        cursor.execute(_VERSIONS)
        versions = dict(cursor.fetchall())
        stale = [i for i, version in versions.items() if self._stages.get(i, ("",))[0] != version]
        if len(self._stages) > len(versions) - len(stale):
            self._stages = {i: known for i, known in self._stages.items() if i in versions}
            self._asked = {i: asked for i, asked in self._asked.items() if i in versions}
            self._dependent.intersection_update(versions)
        if stale:
            cursor.execute(_WAITING, [stale])
            rows = cursor.fetchall()
            for i, *_, request, _version in rows:
                if i not in self._known.requests:
                    self._known.requests[i] = parsed(request)
            reads = self._reads([row for row in rows if "inputs" in self._known.requests[row[0]]])
            sizes = residence.sizes({digest for read in reads.values() for digest in read})
            self._known.receive({row[0]: row[-3] for row in rows})
            for *row, _request, version in rows:
                try:
                    stage = self._stage(row, now)
                except Exception as error:  # noqa: BLE001  one row that cannot be used stops nobody else
                    self._stages.pop(row[0], None)
                    self.aside[f"#{row[2]} {row[3]}"] = f"{type(error).__name__}: {error}"
                    self.unusable[str(row[0])] = row[2]
                    continue
                if read := reads.get(row[0]):
                    known = tuple((digest, sizes[digest]) for digest in read if digest in sizes)
                    stage = replace(stage, inputs=read, input_bytes=known)
                self._stages[row[0]] = (version, stage)
                (self._dependent.add if row[11] is None else self._dependent.discard)(row[0])
        if not versions:
            return ()
        unmet: dict[uuid.UUID, list[str]] = defaultdict(list)
        blocked: dict[uuid.UUID, str] = {}
        if self._dependent.intersection(versions):
            cursor.execute(_UNMET)
            for stage_id, need, state in cursor:
                unmet[stage_id].append(need)
                if state in {State.FAILED, State.CANCELLED}:
                    blocked[stage_id] = need
        bound = pinned("s.state IN ('HELD', 'PENDING')") if pinning else {}
        waiting = []
        for i in versions:
            if i not in self._stages:
                continue  # it left the queue between the two reads
            stage = self._stages[i][1]
            if i in unmet or i in bound:
                needs = tuple(sorted(unmet[i]))
                stage = replace(stage, unmet=needs, blocked_by=blocked.get(i), pinned=bound.get(i, ()))
            waiting.append(stage)
        return tuple(waiting)

    def _foresee(self, now: float) -> None:
        """Predict anew how long they run; whose prediction stays is the same stage. How elastic ones scale was learned
        anew too: these are read again."""
        for i, (version, stage) in list(self._stages.items()):
            try:
                project, job, name, kind, request, user = self._asked[i]
                estimate = self._history.estimate(project, job, name, kind, request, now, user)
            except Exception:  # noqa: BLE001  its row is read again, and if need be set aside
                del self._stages[i]
                continue
            if stage.most_nodes:
                del self._stages[i]
            elif estimate != stage.estimate:
                self._stages[i] = (version, replace(stage, estimate=estimate))

    def _reads(self, rows: list[Any]) -> dict[uuid.UUID, tuple[str, ...]]:
        """What these stages read; one whose inputs cannot be told is set aside when its row is looked at."""
        try:
            return residence.read_by([row[0] for row in rows])
        except Exception:  # noqa: BLE001  one of them: each by itself
            found: dict[uuid.UUID, tuple[str, ...]] = {}
            for row in rows:
                try:
                    found |= residence.read_by([row[0]])
                except Exception as error:  # noqa: BLE001  it is told
                    self.aside[f"#{row[2]} {row[3]}"] = f"its inputs: {type(error).__name__}: {error}"
            return found

    def _stage(self, row: Any, now: float) -> Stage:
        (i, job, number, name, project, user, pool, kind, priority, priority_class, submitted, eligible, state) = row[
            :13
        ]
        begin, retry_at, failures, max_attempts, held_by, promise, job_name, bundle_gone, _ = row[13:]
        request, had = self._known.requests[i], self._known.had(i)
        self._asked[i] = (project, job_name, name, kind, request, user)
        return Stage(
            id=str(i),
            job=job,
            number=number,
            name=name,
            project=project,
            user=user,
            pool=pool,
            kind=kind,
            priority=priority,
            submitted_at=submitted,
            eligible_at=eligible or submitted,
            alternatives=self._known.ways(request),
            estimate=self._history.estimate(project, job_name, name, kind, request, now, user),
            state=State(state),
            nodes=demand.least_nodes(request),
            most_nodes=demand.most_nodes(request),
            scaling=self._scaling.of(i, now) if demand.most_nodes(request) else SCALING,
            priority_class=priority_class,
            precision=request.get("precision", ""),
            preemptible=request["preemptible"],
            time_limit_s=request["time_limit_s"],
            begin_at=begin,
            retry_at=retry_at,
            attempts=failures,
            max_attempts=max_attempts,
            held_by=held_by,
            promise=msgspec.convert(parsed(promise), Promise) if promise else None,
            bundle_missing="it is no longer kept; upload it again" if bundle_gone else "",
            attained_device_s=had.device_s,
            received_s=had.by_model_s,
            stopped_at=had.stopped_at,
            deadline_at=demand.deadline_at(request, submitted),
            avoid=tuple(request.get("avoid", ())),
            site=request.get("site", ""),
            within=request.get("within", ""),
            within_required=request.get("within_required", False),
        )
