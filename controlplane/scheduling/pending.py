"""Reads pending and held stages from the database as engine types, and again only those that changed."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import msgspec

from controlplane.clauses import Told, clause, of_error, told
from controlplane.fleet.world import parsed
from controlplane.jobs import demand
from controlplane.scheduling import data_locality
from controlplane.scheduling.element_limits import ElementLimits
from controlplane.scheduling.history import History
from controlplane.scheduling.pool_refusals import IS_REFUSED
from controlplane.scheduling.scaling import Scaling
from controlplane.scheduling.stage_facts import StageFacts, pinned
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import SCALING, Promise, Reason, Stage

# After new history arrives, each cycle refreshes at least this many predictions, and takes at most this long.
FORESEE: Final = 20
FORESEE_S: Final = 0.01

_ALL = "SELECT id FROM jobs_stage WHERE state IN ('HELD', 'PENDING')"
_WAITING = f"""
SELECT s.id, j.id::text, j.number, s.name, p.name, u.username, o.name, s.kind, j.priority, j.priority_class,
       extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM s.eligible_at)::float8, s.state,
       extract(epoch FROM s.begin_at)::float8, extract(epoch FROM s.retry_at)::float8, s.failures, s.max_attempts,
       s.held_by, s.promise, j.name,
       j.bundle <> '' AND NOT EXISTS (SELECT 1 FROM jobs_bundle b WHERE b.sha256 = j.bundle),
       CASE WHEN s.request ? 'named_secrets' THEN (
           SELECT string_agg(DISTINCT w->>'name', ', ') FROM jsonb_array_elements(s.request->'named_secrets') w
           WHERE NOT EXISTS (SELECT 1 FROM access_secret x WHERE x.project_id = j.project_id AND x.name = w->>'name'))
       END,
       {IS_REFUSED},
       CASE WHEN j.bundle = '' THEN g.url END, g.rev,
       y.number, y.max_parallel, s.attempt_count, s.request
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
     LEFT JOIN jobs_array y ON y.number = j.array_id LEFT JOIN jobs_gitsource g ON g.id = j.source_id
WHERE s.id = ANY(%s) AND s.state IN ('HELD', 'PENDING')
"""
_UNMET = """
SELECT n.from_stage_id, n.to_stage_id::text, t.state
FROM jobs_stage_needs n JOIN jobs_stage t ON t.id = n.to_stage_id
WHERE n.from_stage_id = ANY(%s) AND t.state <> 'COMPLETED'
"""
_AWAITED = """
SELECT s.id, d.name, d.when, u.username, j.name
FROM jobs_stage s JOIN jobs_dependency d ON d.job_id = s.job_id AND d.verdict = ''
     JOIN jobs_job j ON j.id = s.job_id JOIN access_user u ON u.id = j.user_id
WHERE s.id = ANY(%s) ORDER BY d.id
"""
# So many jobs on which another depends are named in its reason.
_NAMED: Final = 5
_FOLLOWERS = "SELECT DISTINCT from_stage_id FROM jobs_stage_needs WHERE to_stage_id = ANY(%s)"


class PendingStages:
    """Incremental reader of pending stages.

    ``waiting`` maps ids to stages; an unchanged stage stays the same object. ``news`` holds the stages that changed (or
    ``None`` for those that left the queue) since the last consumer took and cleared it.
    """

    def __init__(self, known: StageFacts, history: History, scaling: Scaling) -> None:
        self._known, self._history, self._scaling = known, history, scaling
        self.waiting: dict[str, Stage] = {}
        # Those that read inputs that are on no shared storage.
        self.reading: dict[str, Stage] = {}
        self.news: dict[str, Stage | None] = {}
        # Stages as of their own rows, without dependencies and pinning.
        self._stages: dict[uuid.UUID, Stage] = {}
        # Features of the duration prediction: project, names of job and stage, kind, request, user.
        self._asked: dict[uuid.UUID, tuple[str, str, str, str, Any, str]] = {}
        # Stages with unmet dependencies, and stages bound to nodes by data there.
        self._dependent: set[uuid.UUID] = set()
        self._unmet: dict[uuid.UUID, tuple[tuple[str, ...], str | None]] = {}
        self._bound: dict[uuid.UUID, tuple[str, ...]] = {}
        # Why the jobs of stages may not start yet: what they depend on.
        self._awaited: dict[uuid.UUID, Reason] = {}
        self._elements = ElementLimits()
        # Stages whose prediction is older than the history of this serial; for a newer one all follow once more.
        self._outdated: list[uuid.UUID] = []
        self._outdated_since = 0
        # Stages whose rows cannot be used, with the reason, and the numbers of their jobs, by stage.
        self._bad: dict[uuid.UUID, tuple[str, Told, int]] = {}

    @property
    def ids(self) -> Collection[uuid.UUID]:
        """The ids of all cached stages."""
        return self._stages.keys()

    @property
    def aside(self) -> dict[str, Told]:
        """Stages whose rows are invalid: display name to reason."""
        return {name: why for name, why, _number in self._bad.values()}

    @property
    def unusable(self) -> dict[str, int]:
        """Job numbers of stages whose rows are invalid, by stage id."""
        return {str(i): number for i, (_name, _why, number) in self._bad.items()}

    def read(self, cursor: Any, now: float, changed: set[uuid.UUID] | None, *, pinning: bool) -> None:
        """Reread the stages that ``changed``, or all of them (``None``).

        ``pinning`` says that some pool has no shared storage, so that data may bind stages to nodes.
        """
        self._history.ensure(now)
        if not self._outdated and self._outdated_since != self._history.serial:
            self._outdated, self._outdated_since = list(self._stages), self._history.serial
            self._outdated.reverse()  # the oldest are taken first
        if changed is None:
            cursor.execute(_ALL)
            stale = {row[0] for row in cursor.fetchall()} | self._stages.keys() | self._bad.keys()
            affected = stale
        else:
            stale = changed | self._bad.keys()
            affected = stale | self._followers(cursor, changed)
        stale |= self._foresee(now)
        if stale:
            self._look(cursor, now, stale)
        self._see_needs(cursor, affected)
        full = self._elements.changed(cursor, now, self._stages)
        bound = pinned("s.state IN ('HELD', 'PENDING')") if pinning else {}
        moved = {i for i in bound.keys() | self._bound.keys() if bound.get(i) != self._bound.get(i)}
        self._bound = bound
        for i in stale | affected | moved | full:
            self._note_change(i)

    def _note_change(self, i: uuid.UUID) -> None:
        """Combine the cached rows of a stage, and add it to the news if it differs from before."""
        name, stage = str(i), self._stages.get(i)
        if stage is None:
            self.reading.pop(name, None)
            if self.waiting.pop(name, None) is not None:
                self.news[name] = None
            return
        awaits = self._awaited.get(i) or self._elements.full.get(i) or stage.awaits
        if awaits or i in self._unmet or i in self._bound:
            unmet, blocked = self._unmet.get(i, ((), None))
            stage = replace(stage, unmet=unmet, blocked_by=blocked, pinned=self._bound.get(i, ()), awaits=awaits)
        if self.waiting.get(name) != stage:
            self.waiting[name] = self.news[name] = stage
            if stage.inputs:
                self.reading[name] = stage
            else:
                self.reading.pop(name, None)

    def _followers(self, cursor: Any, changed: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Return the pending stages that depend on one of these."""
        if not changed or not self._dependent:
            return set()
        cursor.execute(_FOLLOWERS, [list(changed)])
        return {row[0] for row in cursor.fetchall()} & self._stages.keys()

    def _see_needs(self, cursor: Any, affected: set[uuid.UUID]) -> None:
        """Update the unmet dependencies of these stages, and which of those can never be met."""
        for i in affected:
            self._unmet.pop(i, None)
            self._awaited.pop(i, None)
        asked = list(affected & self._dependent)
        if not asked:
            return
        cursor.execute(_UNMET, [asked])
        found: dict[uuid.UUID, list[str]] = defaultdict(list)
        blocked: dict[uuid.UUID, str] = {}
        for stage_id, need, state in cursor:
            found[stage_id].append(need)
            if state in {State.FAILED, State.CANCELLED}:
                blocked[stage_id] = need
        self._unmet |= {i: (tuple(sorted(needs)), blocked.get(i)) for i, needs in found.items()}
        self._see_awaited(cursor, asked)

    def _see_awaited(self, cursor: Any, asked: list[uuid.UUID]) -> None:
        """Update what the jobs of these stages wait for."""
        cursor.execute(_AWAITED, [asked])
        others: dict[uuid.UUID, list[str]] = defaultdict(list)
        namesakes: dict[uuid.UUID, Reason] = {}
        for i, other, when, user, name in cursor:
            if other:
                others[i].append(f"#{other} ({when})")
            else:
                namesakes[i] = Reason("NamesakePending", {"user": user, "name": name})
        # Elements of an array that wait for the same have the same reason.
        reasons = {names: Reason("JobDependency", _named(names)) for names in map(tuple, others.values())}
        self._awaited |= namesakes | {i: reasons[tuple(names)] for i, names in others.items()}

    def _look(self, cursor: Any, now: float, stale: set[uuid.UUID]) -> None:
        """Reread the rows of these stages; a stage without a row has left the queue."""
        cursor.execute(_WAITING, [list(stale)])
        rows = cursor.fetchall()
        for i in stale - {row[0] for row in rows}:
            self._forget(i)
            self._bad.pop(i, None)
        for i, *_, request in rows:
            # Its owner may have changed it; an equal one stays the same object.
            if (now_asked := parsed(request)) != self._known.requests.get(i):
                self._known.requests[i] = now_asked
        faults: dict[str, Told] = {}
        reads = self._reads([row for row in rows if "inputs" in self._known.requests[row[0]]], faults)
        sizes = data_locality.sizes({digest for read in reads.values() for digest in read})
        self._known.receive({row[0]: row[-2] for row in rows})
        for *row, _request in rows:
            i, named = row[0], f"#{row[2]} {row[3]}"
            try:
                stage = self._stage(row, now)
            except Exception as error:  # noqa: BLE001  one row that cannot be used stops nobody else
                self._forget(i)
                self._bad[i] = (named, of_error(error), row[2])
                continue
            if read := reads.get(i):
                known = tuple((digest, sizes[digest]) for digest in read if digest in sizes)
                stage = replace(stage, inputs=read, input_bytes=known)
            self._bad.pop(i, None)
            if named in faults:
                self._bad[i] = (named, faults[named], row[2])
            self._stages[i] = stage
            self._elements.enter(i, stage, row[11] is not None, *row[25:27])
            (self._dependent.add if row[11] is None else self._dependent.discard)(i)

    def _forget(self, i: uuid.UUID) -> None:
        self._stages.pop(i, None)
        self._elements.remove(i)
        self._asked.pop(i, None)
        self._dependent.discard(i)

    def _foresee(self, now: float) -> set[uuid.UUID]:
        """Refresh outdated duration predictions for at most :data:`FORESEE_S` seconds; the rest follow in later cycles.

        Returns the stages whose rows must be reread: elastic ones, whose scaling was relearned too, and those whose
        prediction failed.
        """
        again, count, until = set(), 0, time.perf_counter() + FORESEE_S
        while self._outdated and (count < FORESEE or time.perf_counter() < until):
            count += 1
            i = self._outdated.pop()
            known = self._stages.get(i)
            if known is None:
                continue
            try:
                project, job, name, kind, request, user = self._asked[i]
                whole = self._history.estimate(project, job, name, kind, request, now, user)
                estimate = whole.without(self._known.had(i).kept_s)
            except Exception:  # noqa: BLE001  its row is read again, and if need be set aside
                again.add(i)
                continue
            if known.most_nodes:
                again.add(i)
            elif estimate != known.estimate:
                self._stages[i] = replace(known, estimate=estimate)
                self._note_change(i)
        return again

    @staticmethod
    def _reads(rows: list[Any], faults: dict[str, Told]) -> dict[uuid.UUID, tuple[str, ...]]:
        """Return the input digests by stage; stages whose inputs are invalid are noted in ``faults``."""
        try:
            return data_locality.read_by([row[0] for row in rows])
        except Exception:  # noqa: BLE001  one of them: each by itself
            found: dict[uuid.UUID, tuple[str, ...]] = {}
            for row in rows:
                try:
                    found |= data_locality.read_by([row[0]])
                except Exception as error:  # noqa: BLE001  it is told
                    faults[f"#{row[2]} {row[3]}"] = told(clause("InputsUnusable", fault=of_error(error)))
            return found

    def _stage(self, row: Any, now: float) -> Stage:
        (i, job, number, name, project, user, pool, kind, priority, priority_class, submitted, eligible, state) = row[
            :13
        ]
        begin, retry_at, failures, max_attempts, held_by, promise, job_name, bundle_gone, secrets_gone, refused = row[
            13:23
        ]
        url, rev = row[23:25]
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
            estimate=self._history.estimate(project, job_name, name, kind, request, now, user).without(had.kept_s),
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
            bundle_gone=bool(bundle_gone),
            awaits=Reason("SourcePending", {"url": url, "rev": rev}) if url else None,
            secret_missing=secrets_gone or "",
            pool_refused=refused,
            attained_device_s=had.device_s,
            received_s=had.by_model_s,
            stopped_at=had.stopped_at,
            deadline_at=demand.deadline_at(request, submitted),
            avoid=tuple(request.get("avoid", ())),
            only=demand.only(request),
            site=request.get("site", ""),
            mounts=demand.mount_sources(request),
            reservation=request.get("reservation", ""),
            within=request.get("within", ""),
            within_required=request.get("within_required", False),
        )


def _named(names: tuple[str, ...]) -> dict[str, object]:
    """Name jobs on which another depends, the first few of many."""
    more = f" +{len(names) - _NAMED}" if len(names) > _NAMED else ""
    return {"jobs": ", ".join(names[:_NAMED]) + more}
