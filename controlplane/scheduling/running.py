"""Reads stages that hold devices from the database as engine types, and again only those that changed."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from controlplane.clauses import Told, of_error
from controlplane.fleet.world import parsed
from controlplane.jobs import demand
from controlplane.scheduling.history import History
from controlplane.scheduling.scaling import Scaling
from controlplane.scheduling.stage_facts import StageFacts, pinned
from scheduler.core.model.kinds import DISK, NETWORK, amount_id
from scheduler.core.model.lifecycle import State
from scheduler.core.model.partitions import Partition
from scheduler.core.model.types import SCALING, Grant, Placement, Running
from scheduler.core.planning.cycles import in_circles
from scheduler.core.resources.elastic import hastened
from scheduler.predict.restarts import restart_s

_RUNNING = """
SELECT s.id, j.id::text, j.number, s.name, p.name, u.username, o.name, s.kind, j.priority, j.priority_class, s.state,
       a.id, a.alternative, extract(epoch FROM coalesce(a.started_at, a.created_at))::float8, a.estimate,
       a.progress_share, a.stop_for::text, extract(epoch FROM a.stop_at)::float8, s.preemptions,
       (SELECT extract(epoch FROM max(c.at))::float8 FROM jobs_checkpoint c WHERE c.attempt_id = a.id),
       EXISTS (SELECT 1 FROM jobs_checkpoint c WHERE c.stage_id = s.id), a.number,
       extract(epoch FROM j.submitted_at)::float8, a.resized_to,
       CASE WHEN s.request ? 'least_nodes' THEN (
           SELECT array_agg(extract(epoch FROM b.ended_at)::float8 ORDER BY b.ended_at) FROM jobs_attempt b
           WHERE b.stage_id = s.id AND b.cause = 'RESIZE' AND b.stop_for <> s.id
             AND b.ended_at > now() - interval '1 day') END,
       o.min_runtime_s::float8,
       CASE WHEN a.number > 1 THEN extract(epoch FROM a.started_at - a.created_at)::float8 END,
       extract(epoch FROM s.eligible_at)::float8, extract(epoch FROM a.progress_at)::float8
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.ended_at IS NULL
     JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED') AND (%s OR s.id = ANY(%s))
"""
# Which unfinished stage was preempted for which other unfinished stage.
_STOPS = """
SELECT DISTINCT a.stage_id::text, a.stop_for::text
FROM jobs_attempt a JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_stage t ON t.id = a.stop_for
WHERE a.cause = 'PREEMPTED' AND a.stop_for <> a.stage_id AND s.preemptions > 0
  AND s.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED') AND t.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED')
"""
_GRANTS = """
SELECT t.attempt_id, t.rank, t.node_id::text, c.device_id::text, c.milli, c.memory_bytes, c.partition, lower(c.slots)
FROM jobs_claim c JOIN jobs_part t ON t.id = c.part_id
WHERE c.closed_at IS NULL AND t.attempt_id = ANY(%s) ORDER BY t.attempt_id, t.rank, c.device_id
"""
# What these attempts hold of their nodes as a whole.
_AMOUNTS = """
SELECT t.attempt_id, t.rank, t.node_id::text, t.disk_bytes, t.disk_mbps, t.network_mbps
FROM jobs_part t WHERE t.attempt_id = ANY(%s) AND t.ended_at IS NULL
  AND (t.disk_bytes > 0 OR t.disk_mbps > 0 OR t.network_mbps > 0)
"""


class RunningStages:
    """Incremental reader of stages that hold devices; see :class:`~controlplane.scheduling.pending.PendingStages`."""

    def __init__(self, known: StageFacts, history: History, scaling: Scaling) -> None:
        self._known, self._history, self._scaling = known, history, scaling
        self.running: dict[str, Running] = {}
        self.news: dict[str, Running | None] = {}
        self._stages: dict[uuid.UUID, Running] = {}
        # Elastic stages, which change with time alone: learned scaling, nodes given back today.
        self._elastic: set[uuid.UUID] = set()
        # Invalid rows by stage id: display name and reason.
        self._bad: dict[uuid.UUID, tuple[str, Told]] = {}
        self._circles: frozenset[str] = frozenset()

    @property
    def aside(self) -> dict[str, Told]:
        """Stages whose rows are invalid (only their claims are used): display name to reason."""
        return dict(self._bad.values())

    def read(
        self,
        cursor: Any,
        now: float,
        waiting: Collection[uuid.UUID],
        changed: set[uuid.UUID] | None,
        *,
        pinning: bool,
    ) -> None:
        """Reread the stages that ``changed``, or all of them (``None``), and drop cached facts of all stages that
        neither run nor are among ``waiting``."""
        everything = changed is None
        stale = set(self._stages) if changed is None else changed | self._elastic | self._bad.keys()
        if stale or everything:
            cursor.execute(_RUNNING, [everything, list(stale)])
            rows = cursor.fetchall()
            stale |= {row[0] for row in rows}
            self._look(cursor, now, rows, stale, pinning=pinning)
        self._known.forget(self._stages, waiting)
        circles: frozenset[str] = frozenset()
        if any(one.preemptions for one in self._stages.values()):
            cursor.execute(_STOPS)
            circles = frozenset(in_circles(cursor.fetchall()))
        turned = {uuid.UUID(name) for name in circles ^ self._circles}
        self._circles = circles
        for i in stale | turned:
            self._note_change(i)

    def _look(self, cursor: Any, now: float, rows: list[Any], stale: set[uuid.UUID], *, pinning: bool) -> None:
        """Process these rows; a stage of ``stale`` without a row holds nothing any more."""
        cursor.execute(_GRANTS, [[row[11] for row in rows]])
        ranks: dict[uuid.UUID, dict[int, tuple[str, list[Grant]]]] = defaultdict(dict)
        for attempt, rank, node, device, milli, memory, profile, slot in cursor:
            part = Partition(slot, profile) if profile else None
            ranks[attempt].setdefault(rank, (node, []))[1].append(Grant(device, milli, memory, part))
        cursor.execute(_AMOUNTS, [[row[11] for row in rows]])
        for attempt, rank, node, disk_bytes, disk_mbps, network_mbps in cursor:
            held = ranks[attempt].setdefault(rank, (node, []))[1]
            if disk_bytes or disk_mbps:
                held.append(Grant(amount_id(node, DISK), disk_mbps, disk_bytes))
            if network_mbps:
                held.append(Grant(amount_id(node, NETWORK), network_mbps, 0))
        ids = [row[0] for row in rows]
        self._known.learn(ids)
        self._known.receive({row[0]: row[21] - 1 for row in rows})
        elastic = [i for i in ids if demand.most_nodes(self._known.requests[i])]
        bound = pinned("s.id = ANY(%s)", elastic) if elastic and pinning else {}
        for i in stale:
            self._bad.pop(i, None)
        for i in stale - set(ids):
            self._stages.pop(i, None)
        self._elastic = (self._elastic - stale) | set(elastic)
        for row in rows:
            self._stages[row[0]] = self._one_or_bare(row, ranks[row[11]], now, bound.get(row[0], ()))

    def _note_change(self, i: uuid.UUID) -> None:
        """Add a stage to the news if it differs from before."""
        name, one = str(i), self._stages.get(i)
        if one is None:
            if self.running.pop(name, None) is not None:
                self.news[name] = None
            return
        if name in self._circles:
            one = replace(one, in_circle=True)
        if self.running.get(name) != one:
            self.running[name] = self.news[name] = one

    def _one_or_bare(
        self,
        row: Any,
        ranks: dict[int, tuple[str, list[Grant]]],
        now: float,
        bound: tuple[str, ...],
    ) -> Running:
        """Convert a row; if it is invalid, return a non-preemptible stand-in that still holds its claims."""
        try:
            return self._one(row, ranks, now, bound)
        except Exception as error:  # noqa: BLE001  one row that cannot be used stops nobody else
            self._bad[row[0]] = (f"#{row[2]} {row[3]}", of_error(error))
            return Running(**_held(row, ranks), estimate=self._history.as_estimate({}), preemptible=False)

    def _one(self, row: Any, ranks: dict[int, tuple[str, list[Grant]]], now: float, bound: tuple[str, ...]) -> Running:
        (
            estimate,
            progress,
            stop_for,
            stop_at,
            preemptions,
            checkpoint_at,
            checkpoints,
            _number,
            submitted,
            resized_to,
            gave_back_at,
            min_runtime_s,
            began_in_s,
            eligible_at,
            progress_at,
        ) = row[14:]
        i, size = row[0], len(ranks)
        request, had = self._known.requests[i], self._known.had(i)
        least, most = demand.least_nodes(request), demand.most_nodes(request)
        scaling = self._scaling.of(i, now) if most else SCALING
        estimate = parsed(estimate)
        return Running(
            **_held(row, ranks),
            estimate=hastened(self._history.as_estimate(estimate), least, size if most else least, scaling),
            scaling=scaling,
            precision=request.get("precision", ""),
            preemptible=request["preemptible"],
            time_limit_s=request["time_limit_s"],
            checkpoint_at=checkpoint_at,
            checkpoints=checkpoints,
            progress=progress,
            progress_at=progress_at,
            least_nodes=least if most else 0,
            most_nodes=most,
            pinned=bound,
            avoid=tuple(request.get("avoid", ())),
            only=demand.only(request),
            site=request.get("site", ""),
            mounts=demand.mount_sources(request),
            within=request.get("within", ""),
            within_required=request.get("within_required", False),
            gave_back_at=tuple(gave_back_at or ()),
            keeps=min(size, resized_to) if resized_to else 0,
            evicted_for=stop_for,
            stop_by_at=stop_at + request["grace_s"] if stop_at else None,
            preemptions=preemptions,
            min_runtime_s=min_runtime_s,
            restart_s=restart_s(had.restarts_s if began_in_s is None else (*had.restarts_s, began_in_s)),
            grace_s=request["grace_s"],
            submitted_at=submitted,
            eligible_at=eligible_at,
            alternatives=self._known.ways(request),
            attained_device_s=had.device_s,
            received_s=had.by_model_s,
            deadline_at=demand.deadline_at(request, submitted),
            saves_on_stop=had.saves,
        )


def _held(row: Any, ranks: Mapping[int, tuple[str, list[Grant]]]) -> dict[str, Any]:
    """Return the fields of a running stage that come from its row and its claims, and so are known even if its
    request is invalid."""
    (i, job, number, name, project, user, pool, kind, priority, priority_class, state, attempt) = row[:12]
    order = sorted(ranks)
    return {
        "id": str(i),
        "job": job,
        "number": number,
        "name": name,
        "project": project,
        "user": user,
        "pool": pool,
        "kind": kind,
        "priority": priority,
        "priority_class": priority_class,
        "state": State(state),
        "attempt": str(attempt),
        "placement": Placement(
            alternative=row[12],
            nodes=tuple(ranks[rank][0] for rank in order),
            grants=tuple(tuple(ranks[rank][1]) for rank in order),
        ),
        "started_at": row[13],
    }
