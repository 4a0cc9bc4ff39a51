"""The only writer of job and stage states: submit, cancel, hold, release, place, stop; :func:`move` is below them.

Every writer locks the jobs it touches first, in order of their ids, then arrays, nodes, and changes stages, attempts,
parts and claims (and with them devices). So writers never deadlock, the state read under the lock is the state that is
updated, and a job's events are numbered without gaps. The UPDATE still names the states it may leave: the table of
``lifecycle`` is the authority.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import Phase
from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.advisory_lock import LockKey
from controlplane.bulk_insert import insert
from controlplane.clauses import Told, clause, told
from controlplane.fleet import divisions
from controlplane.jobs import demand, depends_on, elements, node_amounts, possible, saves, sealed, waiting_limit
from controlplane.jobs import spec as jobfile
from controlplane.jobs.git_ask import GitAsk
from controlplane.jobs.models import (
    Array,
    Attempt,
    Bundle,
    Claim,
    Dependency,
    Event,
    GitSource,
    Job,
    JobSecrets,
    Part,
    Stage,
)
from controlplane.jobs.section import FieldError
from scheduler.core.model import partitions
from scheduler.core.model.lifecycle import (
    ACTIVE,
    FINAL,
    TABLE,
    WAITING,
    Cause,
    IllegalTransition,
    State,
    job_state,
    sources,
)
from scheduler.core.model.lifecycle import StageEvent as What
from scheduler.core.model.types import Grant

NOTHING = Told()
# Fields of stages that follow from no change of a state.
_UNREAD: Final = (
    "request", "reasons", "funnel", "values", "expected", "announced", "first_promise", "lasts", "planned", "promise",
    "progress", "waited",
)  # fmt: skip
# What of a fetched commit is left out, and why one was not fetched, as clauses.
_WITHOUT: Final = {"submodules": "WithoutSubmodules", "lfs": "WithoutLfs"}
SOURCE_FAULTS: Final[Mapping[str, str]] = {
    "invalid_url": "GitAddressRefused",
    "https_only": "GitAddressRefused",
    "private_address": "GitAddressRefused",
    "unknown_host": "GitHostUnknown",
    "no_answer": "GitNoAnswer",
    "timed_out": "GitTimedOut",
    "tls_failed": "GitTlsFailed",
    "redirected": "GitRedirected",
    "denied": "GitDenied",
    "not_found": "GitNotFound",
    "unknown_rev": "GitRevUnknown",
    "old_server": "GitServerTooOld",
    "unsafe": "GitUnsafe",
    "too_large": "GitTooLarge",
    "too_many_bundles": "GitTooManyBundles",
    "secret_missing": "GitSecretMissing",
    "key_unavailable": "GitKeyUnavailable",
    "disk_full": "GitDiskFull",
    "no_git": "GitNotInstalled",
}
TARGET = {event: state for (_, event), state in TABLE.items()}


@dataclass(slots=True)
class Note:
    """A fact to append to a job's event list."""

    job: Job
    kind: str
    told: Told
    actor: str
    stage: str = ""
    attempt: int | None = None
    params: dict[str, Any] = field(default_factory=dict)


def lock(job_ids: Iterable[uuid.UUID], unread: Sequence[str] = ()) -> dict[uuid.UUID, Job]:
    """Return the jobs with these ids, locked until the transaction ends; the fields ``unread`` are not loaded."""
    ids = set(job_ids)
    rows = Job.objects.select_for_update().filter(id__in=ids).order_by("id").defer(*unread)
    return {job.id: job for job in rows} if ids else {}


def note(notes: Sequence[Note], at: datetime) -> None:
    """Append facts to the jobs' event lists; the jobs must be locked."""
    rows = []
    for fact in notes:
        fact.job.event_seq += 1
        rows.append(
            Event(
                job=fact.job,
                seq=fact.job.event_seq,
                at=at,
                kind=fact.kind,
                stage=fact.stage,
                attempt=fact.attempt,
                actor=fact.actor,
                text=fact.told.text,
                said=fact.told.said,
                params=fact.params,
            )
        )
    insert(rows)


_MOVE = """
UPDATE jobs_stage s SET state = %s, state_at = now(), version = s.version + 1, cause = v.cause,
    detail = v.detail, said = v.said, exit_code = v.exit_code, started_at = v.started_at, ended_at = v.ended_at,
    eligible_at = v.eligible_at, retry_at = v.retry_at, attempt_count = v.attempt_count, failures = v.failures,
    preemptions = v.preemptions, held_by = v.held_by,
    reasons = CASE WHEN %s THEN '[]'::jsonb ELSE s.reasons END,
    planned = CASE WHEN %s THEN NULL ELSE s.planned END, expected = CASE WHEN %s THEN NULL ELSE s.expected END,
    promise = CASE WHEN %s THEN NULL ELSE s.promise END
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::int[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[],
            %s::timestamptz[], %s::int[], %s::int[], %s::int[], %s::text[], %s::jsonb[])
    AS v(id, cause, detail, exit_code, started_at, ended_at, eligible_at, retry_at, attempt_count, failures,
         preemptions, held_by, said)
WHERE s.id = v.id AND s.state = ANY(%s) RETURNING s.id
"""


def move(stages: Sequence[Stage], what: What) -> None:
    """Write the state that follows from ``what`` for all of ``stages``, together with their other changed fields.

    Their jobs must be locked. Raises IllegalTransition, and writes nothing, if one of them is in a state that does not
    allow this transition.
    """
    if not stages:
        return
    target, allowed = TARGET[what], sources(what)
    for stage in stages:
        if State(stage.state) not in allowed:
            raise IllegalTransition(State(stage.state), what)
    waits_no_more = target not in WAITING
    columns = [
        [getattr(stage, name) for stage in stages]
        for name in (
            "id",
            "cause",
            "detail",
            "exit_code",
            "started_at",
            "ended_at",
            "eligible_at",
            "retry_at",
            "attempt_count",
            "failures",
            "preemptions",
            "held_by",
        )
    ]
    columns.append([json.dumps(stage.said) for stage in stages])
    with connection.cursor() as cursor:
        cursor.execute(_MOVE, [target, *[waits_no_more] * 4, *columns, list(allowed)])
        written = {row[0] for row in cursor.fetchall()}
    for stage in stages:
        if stage.id not in written:
            raise IllegalTransition(State(stage.state), what)
        stage.state = target


_SETTLE = """
UPDATE jobs_job j SET state = v.state, cause = v.cause, started_at = v.started_at, ended_at = v.ended_at,
    event_seq = v.event_seq, version = j.version + 1
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::int[])
    AS v(id, state, cause, started_at, ended_at, event_seq)
WHERE j.id = v.id
"""


def settle(jobs: Iterable[Job], notes: Iterable[Note], at: datetime, moved: Iterable[Stage] = ()) -> None:
    """Update locked jobs and dependent stages after stages have moved; write the jobs and these facts.

    A job's state derives from its stages; a stage whose dependencies have completed becomes eligible; one that can
    never run any more is cancelled. ``moved`` are the stages as the caller has just written them, so that a job of one
    stage need not be read again.
    """
    jobs, notes = list(jobs), list(notes)
    if not jobs:
        return
    by_job: dict[uuid.UUID, list[Stage]] = {job.id: [] for job in jobs}
    known = {stage.job_id: stage for stage in moved}
    alone = {job.id for job in jobs if job.id in known and len(job.spec.get("stages") or [job]) == 1}
    for job_id in alone:
        by_job[job_id] = [known[job_id]]
    if others := [job for job in jobs if job.id not in alone]:
        for stage in Stage.objects.filter(job__in=others).order_by("index").defer(*_UNREAD):
            by_job[stage.job_id].append(stage)
    several = [job.id for job in jobs if len(by_job[job.id]) > 1]
    needs: dict[uuid.UUID, set[uuid.UUID]] = {}
    if several:
        through = Stage.needs.through.objects.filter(from_stage__job__in=several)
        for needing, needed in through.values_list("from_stage_id", "to_stage_id"):
            needs.setdefault(needing, set()).add(needed)
    doomed: list[Stage] = []
    for job in jobs:
        notes += _consequences(job, by_job[job.id], needs, doomed, at)
    move(doomed, What.CANCEL)
    for job in jobs:
        notes += _derive(job, by_job[job.id], at)
    note(notes, at)
    columns = [
        [getattr(job, name) for job in jobs] for name in ("id", "state", "cause", "started_at", "ended_at", "event_seq")
    ]
    with connection.cursor() as cursor:
        cursor.execute(_SETTLE, columns)


def _consequences(
    job: Job, stages: list[Stage], needs: dict[uuid.UUID, set[uuid.UUID]], doomed: list[Stage], at: datetime
) -> list[Note]:
    """Append stages that can never start to ``doomed``, and note which others have become eligible."""
    notes: list[Note] = []
    states = {stage.id: State(stage.state) for stage in stages}
    names = {stage.id: stage.name for stage in stages}
    for stage in stages:  # needs may point to earlier or later stages of the file; repeated until nothing changes
        if stage.id not in needs or states[stage.id] not in WAITING:
            continue
        if stage.eligible_at is None and all(states[need] == State.COMPLETED for need in needs[stage.id]):
            stage.eligible_at = at
            Stage.objects.filter(id=stage.id).update(eligible_at=at)
            notes.append(Note(job, "eligible", told(clause("MayStart", stage=stage.name)), "engine", stage.name))
    changed = True
    while changed:
        changed = False
        for stage in stages:
            dead = [n for n in needs.get(stage.id, ()) if states[n] in {State.FAILED, State.CANCELLED}]
            if dead and states[stage.id] in WAITING:
                states[stage.id] = State.CANCELLED
                stage.cause, stage.ended_at = Cause.DEPENDENCY, at
                why = told(clause("NeedFailed", need=names[dead[0]], stage=stage.name))
                stage.detail, stage.said = why.text, why.said
                doomed.append(stage)
                notes.append(Note(job, "cancelled", why, "engine", stage.name))
                changed = True
    return notes


def _derive(job: Job, stages: list[Stage], at: datetime) -> list[Note]:
    before, after = State(job.state), job_state([State(stage.state) for stage in stages])
    if job.started_at is None and after not in WAITING and any(stage.attempt_count for stage in stages):
        job.started_at = at
    if after == before:
        return []
    job.state = after
    if after in FINAL:
        job.ended_at = at
        # The cause is that of the first failed stage, not of those cancelled because they depend on it.
        ends = [stage.cause for stage in stages if stage.cause and State(stage.state) != State.COMPLETED]
        job.cause = next((cause for cause in ends if cause != Cause.DEPENDENCY), ends[0] if ends else "")
        return [Note(job, after.lower(), told(clause("JobState", job=str(job), state=str(after))), "engine")]
    return []


def submit(spec: dict[str, Any], user: User, *, actor: str = "") -> Job:
    """Submit one job, whose file names no array. Raises ``spec.InvalidSpec`` with every fault of the file; nothing is
    written then."""
    job = submit_many([spec], user, actor=actor)[0]
    assert isinstance(job, Job), "submit_many takes arrays"
    return job


def submit_many(specs: Sequence[dict[str, Any]], user: User, *, actor: str = "") -> list[Job | Array]:
    """Submit all of these jobs in one transaction, or none; return the job, or the array, of each file.

    Raises ``spec.InvalidSpec``, and ``KeyUnavailable`` if a secret cannot be encrypted.
    """
    resolved = jobfile.resolve_all(specs, user)
    possible.check(resolved)
    # Equal files were resolved once, and their secrets are separated once.
    distinct = {id(one): (spec, one) for spec, one in zip(specs, resolved, strict=True)}
    parted = {key: sealed.part(spec, [stage.request for stage in one.stages]) for key, (spec, one) in distinct.items()}
    submission = _Submission(user, actor or user.get_username(), timezone.now())
    with transaction.atomic():
        limits = waiting_limit.of(user)
        alone = bool(limits) or any(wait.on is None for _spec, one in distinct.values() for wait in one.depends_on)
        _lock_awaited(one for _spec, one in distinct.values())
        numbers = iter(_numbers(sum(1 + len(one.array) if one.array else 1 for one in resolved), user, alone=alone))
        waiting_limit.check(limits, user, resolved)
        made = [submission.add(one, parted[id(one)], numbers) for one in resolved]
        submission.write()
        _audit_submitted(made)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("jobs"))
    return made


def submit_elsewhere(
    spec: dict[str, Any], user: User, *, job_id: uuid.UUID, stage_id: uuid.UUID, actor: str, at: datetime
) -> tuple[Job, Stage]:
    """Insert a job of one stage that was accepted elsewhere at ``at``, under the ids that were chosen there.

    It is in a transaction of the caller, who says what became of it. Values of secrets are not kept, because nothing
    here starts it. Raises ``spec.InvalidSpec``.
    """
    (one,) = jobfile.resolve_all([spec], user)
    parted = replace(sealed.part(spec, [stage.request for stage in one.stages]), values=[])
    submission = _Submission(user, actor, at)
    job = submission.add_one(one, parted, next(iter(_numbers(1, user, alone=False))), id=job_id)
    (stage,) = submission.stages
    stage.id = stage_id
    submission.write()
    return job, stage


# Submissions of a user with a singleton, or with a limit on stages that wait, are alone, and others of that user come
# before or after them: what has a lower number is seen when it is looked for what a singleton waits for.
_NUMBERS = """
WITH submits AS MATERIALIZED (SELECT pg_advisory_xact_lock{shared}(%s, %s))
SELECT nextval('jobs_job_number') FROM submits, generate_series(1, %s)
"""


def _numbers(count: int, user: User, *, alone: bool) -> list[int]:
    """Return so many new numbers of jobs, ascending."""
    with connection.cursor() as cursor:
        cursor.execute(_NUMBERS.format(shared="" if alone else "_shared"), [LockKey.SUBMITS, user.pk, count])
        return [row[0] for row in cursor.fetchall()]


def keep_submissions_out(user: User) -> None:
    """Let the user's submissions wait until the transaction ends; jobs are locked before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LockKey.SUBMITS, user.pk])


_LOCK_JOBS = "SELECT id FROM jobs_job WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE"
_LOCK_ARRAYS = "SELECT number FROM jobs_array WHERE number = ANY(%s) ORDER BY number FOR KEY SHARE"
_WHOLE = """
SELECT y.number FROM jobs_array y
WHERE y.number = ANY(%s) AND y.count = (SELECT count(*) FROM jobs_job e WHERE e.array_id = y.number)
"""


def _lock_awaited(resolved: Iterable[jobfile.Resolved]) -> None:
    """Keep the jobs and arrays on which these depend from being removed until the transaction ends."""
    jobs: set[uuid.UUID] = set()
    arrays: set[int] = set()
    for awaited in (awaited for one in resolved for awaited in one.depends_on):
        jobs.update(awaited.elements.values())
        if awaited.on and awaited.on.job:
            jobs.add(awaited.on.job)
        elif awaited.on and awaited.on.array and not awaited.elements:
            arrays.add(awaited.on.array)
    if not jobs and not arrays:
        return
    with connection.cursor() as cursor:
        for statement, ids in ((_LOCK_JOBS, list(jobs)), (_LOCK_ARRAYS, list(arrays)), (_WHOLE, list(arrays))):
            cursor.execute(statement, [ids])
            if len(cursor.fetchall()) < len(ids):
                raise jobfile.InvalidSpec([depends_on.gone()])


@dataclass(slots=True)
class _Submission:
    """The rows of the jobs of one submission, until they are written."""

    user: User
    actor: str
    at: datetime
    arrays: list[Array] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    sources: dict[tuple[uuid.UUID, GitAsk], GitSource] = field(default_factory=dict)
    kept: list[JobSecrets] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    needs: list[Any] = field(default_factory=list)
    waits: list[Dependency] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    # Elements of arrays that are copied from the first.
    copies: list[tuple[Job, list[elements.Element]]] = field(default_factory=list)

    def add(self, one: jobfile.Resolved, without: sealed.Parted, numbers: Iterator[int]) -> Job | Array:
        """Add the rows of one file; return its job or its array."""
        plan = one.array
        if plan is None:
            return self.add_one(one, without, next(numbers))
        array = Array(
            number=next(numbers),
            name=one.name,
            project=one.project,
            user=self.user,
            pool=one.pool,
            count=len(plan),
            max_parallel=plan.max_parallel,
            halving=asdict(plan.halving) if plan.halving else None,
            asked=dict(plan.asked),
            submitted_at=self.at,
        )
        self.arrays.append(array)
        points: list[dict[str, Any] | None] = [*map(dict, plan.parameters)] or [None] * len(plan)
        places = zip(plan.indexes, points, strict=True)
        index, point = next(places)
        first = self.add_one(one, without, next(numbers), array=array, array_index=index, parameters=point)
        others = [elements.Element(next(numbers), one.name, index, point) for index, point in places]
        for other in others:
            self._add_own(other.id, other.index, one, without)
        self.copies.append((first, others))
        return array

    def add_one(self, one: jobfile.Resolved, without: sealed.Parted, number: int, **of_array: Any) -> Job:
        """Add the rows of one job."""
        state = State.HELD if one.hold else State.PENDING
        job = Job(
            number=number,
            name=one.name,
            project=one.project,
            user=self.user,
            pool=one.pool,
            priority_class=one.priority_class,
            priority=one.priority,
            state=state,
            spec={key: value for key, value in without.spec.items() if key != "array"},
            labels=one.labels,
            bundle=one.bundle,
            source=self._source(one),
            submitted_at=self.at,
            event_seq=1,
            events_gone=0,
            **of_array,
        )
        self.jobs.append(job)
        self._add_own(job.id, job.array_index, one, without)
        self.events.append(elements.submitted(job, self.actor, self.at))
        by_name = {}
        for index, (each, request) in enumerate(zip(one.stages, without.requests, strict=True)):
            by_name[each.name] = Stage(
                job=job,
                index=index,
                name=each.name,
                kind=each.kind,
                state=state,
                state_at=self.at,
                request=request,
                max_attempts=each.max_attempts,
                held_by=self.actor if one.hold else "",
                begin_at=each.begin_at,
                eligible_at=None if each.needs or one.depends_on else self.at,
            )
        self.stages += by_name.values()
        through = Stage.needs.through
        for each in one.stages:
            self.needs += [
                through(from_stage_id=by_name[each.name].id, to_stage_id=by_name[need].id) for need in each.needs
            ]
        return job

    def _source(self, one: jobfile.Resolved) -> GitSource | None:
        """Return the row of a git repository, which jobs of one submission that name the same share."""
        if one.git is None:
            return None
        key, ask = (one.project.id, one.git), one.git
        if key not in self.sources:
            self.sources[key] = GitSource(
                project=one.project,
                user=self.user,
                url=ask.url,
                rev=ask.rev,
                secret=ask.secret,
                username=ask.username,
                created_at=self.at,
            )
        return self.sources[key]

    def _add_own(self, job: uuid.UUID, index: int | None, one: jobfile.Resolved, without: sealed.Parted) -> None:
        """Add the rows of a job that each element of an array has by itself."""
        if without.values:
            self.kept.append(sealed.row(job, without.values))
        for awaited in one.depends_on:
            of = awaited.of(index)
            self.waits.append(
                Dependency(
                    job_id=job,
                    when=awaited.when,
                    name=awaited.name(index),
                    on_job_id=of,
                    on_array_id=awaited.on.array if awaited.on and of is None else None,
                )
            )

    def write(self) -> None:
        """Insert all rows."""
        insert(self.arrays)
        insert(list(self.sources.values()))
        insert(self.jobs)
        if not Bundle.use({job.bundle for job in self.jobs if job.bundle}):
            gone = _("no such bundle was uploaded; POST it to /api/v1/bundles first")
            raise jobfile.InvalidSpec([FieldError("/bundle", gone, "unknown_bundle")])
        insert(self.stages)
        insert(self.needs)
        insert(self.events)
        for first, others in self.copies:
            elements.insert_like(first, others, self.actor)
        insert(self.kept)
        insert(self.waits)


def _audit_submitted(made: Sequence[Job | Array]) -> None:
    """Write one audit entry, also for many jobs, whose numbers are consecutive."""
    first, last = made[0], made[-1]
    told: dict[str, Any] = {"project": first.project.name, "pool": first.pool.name}
    if isinstance(first, Job):
        told |= {"priority": first.priority, "state": first.state}
    if len(made) > 1:
        told |= {"jobs": len(made), "projects": sorted({one.project.name for one in made})}
        audit.record("job.submit", ("job", first.number, f"#{first.number} to #{last.number}"), after=told)
    elif isinstance(first, Array):
        told |= {"count": first.count, "max_parallel": first.max_parallel}
        audit.record("array.submit", ("array", first.number, f"#{first.number}"), after=told)
    else:
        audit.record("job.submit", ("job", first.number, f"#{first.number}"), after=told)


def _audit_changed(action: str, before: str, job: Job, reason: str) -> None:
    was, now = {"state": before}, {"state": job.state}
    audit.record(action, ("job", job.number, f"#{job.number}"), before=was, after=now, reason=reason)


def _done(code: str, job: Job, actor: str, reason: str | Told) -> Told:
    """Describe what somebody did with a job and why; the reason is most often in the user's own words."""
    return told(clause(code, actor=actor, job=str(job)), *([clause("Because", why=reason)] if reason else []))


def cancel(job: Job, actor: str, reason: str | Told = "") -> Job:
    """Cancel a job for good. Waiting stages end at once, active ones within their grace period. Idempotent."""
    with transaction.atomic():
        locked = lock([job.id])[job.id]
        before = locked.state
        _cancel([locked], actor, reason)
        _audit_changed("job.cancel", before, locked, reason.text if isinstance(reason, Told) else reason)
    return locked


def cancel_many(job_ids: Iterable[uuid.UUID], actor: str, reason: str = "") -> int:
    """Cancel these jobs in one transaction, and return how many had not ended. The caller writes the audit entry."""
    with transaction.atomic():
        return _cancel(list(lock(job_ids).values()), actor, reason)


def _cancel(jobs: Sequence[Job], actor: str, reason: str | Told) -> int:
    why = reason if isinstance(reason, Told) else Told(reason)
    facts = [Note(job, "cancel", _done("CancelledBy", job, actor, reason), actor) for job in jobs]
    return _end_all(jobs, Cause.CANCELLED, {job.id: why for job in jobs}, facts)


def stop_early(jobs: Mapping[uuid.UUID, Job], why: Mapping[uuid.UUID, Told]) -> int:
    """End those of the jobs, elements of a sweep, for which there is a reason; return how many had not ended.

    The jobs must be locked. It is no failure: they are CANCELLED with a cause of their own.
    """
    ending = [jobs[job] for job in why]
    facts = [Note(job, "early_stop", why[job.id], "engine") for job in ending]
    return _end_all(ending, Cause.EARLY_STOPPED, why, facts)


def _end_all(jobs: Sequence[Job], cause: Cause, why: Mapping[uuid.UUID, Told], facts: Sequence[Note]) -> int:
    """End all stages of locked jobs; the facts are noted of those jobs that had not ended, whose number is returned."""
    at = timezone.now()
    stages = list(Stage.objects.filter(job__in=jobs).order_by("job", "index").defer(*_UNREAD))
    waiting = [stage for stage in stages if State(stage.state) in WAITING]
    for stage in waiting:
        stage.cause, stage.ended_at = cause, at
        stage.detail, stage.said = why[stage.job_id].text, why[stage.job_id].said
    active = [stage for stage in stages if State(stage.state) in ACTIVE]
    open_ = {stage.job_id for stage in (*waiting, *active)}
    notes = [fact for fact in facts if fact.job.id in open_]
    move(waiting, What.CANCEL)
    notes += stop(jobs, active, cause, at, note=NOTHING if cause == Cause.CANCELLED else why)
    settle(jobs, notes, at)
    _announce(jobs)
    return len(open_)


def give_code(source: GitSource, commit: str, bundle: str, without: Sequence[str] = ()) -> bool:
    """Give the fetched commit of a git source to its jobs, which may start now; False if the bundle has gone by now."""
    at = timezone.now()
    told_ = told(
        clause("SourceFetched", commit=commit, url=source.url, rev=source.rev),
        *(clause(_WITHOUT[part]) for part in without),
    )
    with transaction.atomic():
        if not Bundle.use([bundle]):
            return False
        source.commit, source.bundle, source.fault, source.retry_at, source.ended_at = commit, bundle, "", None, at
        source.save(update_fields=["commit", "bundle", "fault", "retry_at", "ended_at"])
        jobs = list(lock(source.jobs.filter(state__in=WAITING).values_list("id", flat=True)).values())
        Job.objects.filter(id__in=[job.id for job in jobs]).update(bundle=bundle)
        settle(jobs, [Note(job, "source", told_, "engine") for job in jobs], at)
        _announce(jobs)
    return True


def fail_without_code(source: GitSource) -> None:
    """Fail what waits for the code of a git source that was given up."""
    at = timezone.now()
    why = told(clause("SourceFailed", url=source.url, rev=source.rev), clause(SOURCE_FAULTS[source.fault]))
    with transaction.atomic():
        jobs = lock(source.jobs.filter(state=State.PENDING).values_list("id", flat=True))
        # What needs another stage is cancelled with it.
        waiting = Stage.objects.filter(job__in=jobs, state=State.PENDING, needs=None).defer(*_UNREAD)
        stages = list(waiting.order_by("job", "index"))
        for stage in stages:
            stage.cause, stage.ended_at, stage.detail, stage.said = Cause.LAUNCH_FAILED, at, why.text, why.said
        move(stages, What.FAIL)
        settle(jobs.values(), [Note(jobs[stage.job_id], "failed", why, "engine", stage.name) for stage in stages], at)
        _announce(list(jobs.values()))


def requeue(job: Job, actor: str, reason: str = "") -> Job:
    """Stop what runs of a job so that it is queued again, at no cost of its retries; it resumes from its checkpoints.

    Raises IllegalTransition if nothing of it runs.
    """
    at = timezone.now()
    with transaction.atomic():
        locked = lock([job.id])[job.id]
        active = [stage for stage in locked.stages.all() if State(stage.state) in ACTIVE]
        if not active:
            raise IllegalTransition(State(locked.state), What.REQUEUE)
        before = locked.state
        notes = [Note(locked, "requeue", _done("RequeuedBy", locked, actor, reason), actor)]
        notes += stop([locked], active, Cause.REQUEUED, at, note=Told(reason))
        settle([locked], notes, at)
        _audit_changed("job.requeue", before, locked, reason)
        _announce([locked])
    return locked


def hold(job: Job, actor: str, reason: str = "") -> Job:
    """Hold the waiting stages of a job, so that they do not start until released."""
    return _hold_or_release(job, actor, reason, What.HOLD)


def release(job: Job, actor: str, reason: str = "") -> Job:
    """Release held stages, so that they may start again."""
    return _hold_or_release(job, actor, reason, What.RELEASE)


def _hold_or_release(job: Job, actor: str, reason: str, what: What) -> Job:
    with transaction.atomic():
        locked = lock([job.id])[job.id]
        before = locked.state
        if not _apply_to([locked], actor, reason, what):
            raise IllegalTransition(State(locked.state), what)
        _audit_changed(f"job.{what}", before, locked, reason)
    return locked


def hold_or_release_many(job_ids: Iterable[uuid.UUID], actor: str, reason: str, what: What) -> int:
    """Hold or release those of these jobs that can be, in one transaction; return how many. The caller writes the audit
    entry."""
    with transaction.atomic():
        return _apply_to(list(lock(job_ids).values()), actor, reason, what)


def _apply_to(jobs: Sequence[Job], actor: str, reason: str, what: What) -> int:
    at = timezone.now()
    found = Stage.objects.filter(job__in=jobs, state__in=sources(what)).order_by("job", "index")
    stages = list(found.defer(*_UNREAD))
    for stage in stages:
        stage.held_by = actor if what == What.HOLD else ""
    move(stages, what)
    moved = {stage.job_id for stage in stages}
    touched = [job for job in jobs if job.id in moved]
    code = "HeldBy" if what == What.HOLD else "ReleasedBy"
    settle(touched, [Note(job, what, _done(code, job, actor, reason), actor) for job in touched], at, stages)
    if touched:
        _announce(touched)
    return len(touched)


def stop(
    jobs: Sequence[Job],
    stages: Sequence[Stage],
    why: Cause,
    at: datetime,
    *,
    stop_for: uuid.UUID | None = None,
    stop_devices: Collection[uuid.UUID] | None = None,
    note: Told | Mapping[uuid.UUID, Told] = NOTHING,
    resized_to: int | None = None,
    grace_s: float | None = None,
) -> list[Note]:
    """Ask the live attempts of these active stages to stop. What ends them for good overrides any other reason.

    What they free is reserved for the stage ``stop_for``: of all that they hold, only ``stop_devices`` if these are
    given. ``note`` adds details to the cause, for all or by the ids of jobs; ``resized_to`` is the new number of nodes
    if the stage is resized. With ``grace_s`` they have so long to end, also those that were asked before. Their jobs
    must be locked, and the caller settles them with the facts that this returns. The processes end within their grace
    period; the stages become STOPPING now.
    """
    if not stages:
        return []
    touch_nodes(
        Part.objects.filter(attempt__stage__in=stages, ended_at=None).values_list("node_id", flat=True),
    )
    live = {a.stage_id: a for a in Attempt.objects.filter(stage__in=stages, ended_at=None)}

    def said_of(stage: Stage) -> Told:
        return note if isinstance(note, Told) else note[stage.job_id]

    asked: list[Attempt] = []
    hurried: list[Attempt] = []
    for stage in stages:
        attempt = live.get(stage.id)
        if attempt is None:
            continue
        if grace_s is not None and attempt.stop_why:
            hurried.append(attempt)
        is_stronger = why == Cause.CANCELLED or (why == Cause.EARLY_STOPPED and attempt.stop_why != Cause.CANCELLED)
        if attempt.stop_why and not is_stronger:
            continue
        said = said_of(stage)
        if not attempt.stop_why:
            # They outlast a stronger reason: what an eviction frees stays promised to whom it was done for, and no
            # cancel gives more time than was left.
            attempt.stop_for, attempt.stop_grace_s = stop_for, grace_s
            attempt.stop_devices = None if stop_devices is None else sorted(stop_devices)
        attempt.stop_why, attempt.stop_at = why, attempt.stop_at or at
        attempt.stop_note, attempt.resized_to = said.text[:300], resized_to
        attempt.said = {**attempt.said, "stop_note": said.said}
        asked.append(attempt)
    Attempt.objects.bulk_update(
        asked,
        ["stop_why", "stop_at", "stop_for", "stop_devices", "stop_note", "stop_grace_s", "said", "resized_to"],
    )
    Attempt.objects.filter(id__in=[attempt.id for attempt in hurried]).update(stop_grace_s=grace_s)
    move([s for s in stages if State(s.state) in sources(What.STOP)], What.STOP)
    by_id = {job.id: job for job in jobs}
    of = {stage.id: stage for stage in stages}
    return [
        Note(
            by_id[of[attempt.stage_id].job_id],
            "stop",
            told(
                clause("AskedToStop", stage=of[attempt.stage_id].name, cause=str(why)),
                *([clause("Because", why=said)] if said.text else []),
            ),
            "engine",
            of[attempt.stage_id].name,
            attempt.number,
            {"why": why} | ({"note": said.text} if said.text else {}),
        )
        for attempt in asked
        for said in [said_of(of[attempt.stage_id])]
    ]


def touch_nodes(node_ids: Iterable[uuid.UUID]) -> None:
    """Raise the generation of these nodes in this transaction, and nudge their sockets once it has committed."""
    ids = sorted(set(node_ids))
    if not ids:
        return
    with connection.cursor() as cursor:
        # Locked in order of their ids, as everywhere.
        cursor.execute(
            "UPDATE fleet_node SET generation = generation + 1 "
            "WHERE id IN (SELECT id FROM fleet_node WHERE id = ANY(%s) ORDER BY id FOR UPDATE)",
            [ids],
        )
    names = [str(i) for i in ids]
    transaction.on_commit(lambda: changes.nudge(names))


@dataclass(frozen=True, slots=True)
class Placing:
    """A placement of one stage: per rank a node and the grants on it."""

    stage: Stage
    alternative: int
    ranks: tuple[tuple[uuid.UUID, tuple[Grant, ...]], ...]
    why: Told
    estimate: dict[str, Any]


def place(jobs: dict[uuid.UUID, Job], placings: Sequence[Placing], at: datetime) -> list[Note]:
    """Start these stages: create attempts, parts and claims, and write the states.

    The jobs must be locked and the nodes touched, and the caller settles the jobs with the facts that this returns.
    Raises IntegrityError if a device or a node cannot give what is claimed; the caller holds a savepoint.
    """
    attempts, parts, claims = [], [], []
    own_s = saves.own_s([placing.stage.id for placing in placings if placing.stage.attempt_count])
    where = divisions.places(grant for placing in placings for _, grants in placing.ranks for grant in grants)
    for placing in placings:
        stage = placing.stage
        stage.attempt_count += 1
        stage.cause = stage.detail = ""
        stage.said = []
        stage.exit_code = None
        stage.retry_at = None
        every_s, why_so_often = saves.interval(
            jobs[stage.job_id], stage, len(placing.ranks), _accelerators(placing), own_s, at
        )
        attempt = Attempt(
            stage=stage,
            number=stage.attempt_count,
            epoch=stage.attempt_count,
            alternative=placing.alternative,
            why_here=placing.why.text,
            said={"why_here": placing.why.said, "saves": why_so_often.said},
            checkpoint_every_s=every_s,
            estimate=placing.estimate,
            created_at=at,
        )
        attempts.append(attempt)
        for rank, (node_id, grants) in enumerate(placing.ranks):
            part = Part(attempt=attempt, node_id=node_id, rank=rank, epoch=attempt.epoch, phase=Phase.ASSIGNED)
            node_amounts.give(part, grants)
            parts.append(part)
            claims += [_claim(part, grant, where, at) for grant in node_amounts.of_devices(grants)]
    node_amounts.check(parts)
    resized = _resized(jobs, placings)
    move([placing.stage for placing in placings], What.PLACE)
    _forget_reported([placing.stage for placing in placings])
    Attempt.objects.bulk_create(attempts)
    Part.objects.bulk_create(parts)
    Claim.objects.bulk_create(claims)
    return resized + [
        Note(
            jobs[placing.stage.job_id],
            "placed",
            told(clause("Placed", stage=placing.stage.name, why=placing.why)),
            "engine",
            placing.stage.name,
            placing.stage.attempt_count,
        )
        for placing in placings
    ]


def _forget_reported(stages: Sequence[Stage]) -> None:
    """Forget what earlier attempts of stages reported whose model is judged by it: only the last one's counts."""
    again = [stage.id for stage in stages if stage.attempt_count > 1 and "promote" in stage.request]
    if again:
        Stage.objects.filter(id__in=again).update(values={})


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a stage was started without the engine: a node, the ids that were chosen there, and the devices as their
    id, milli and bytes. It has ended if ``ended_at`` is known."""

    node: uuid.UUID
    attempt: uuid.UUID
    part: uuid.UUID
    began_at: datetime
    ended_at: datetime | None
    claims: Sequence[tuple[uuid.UUID, int, int]]
    why: Told
    actor: str


def place_elsewhere(job: Job, stage: Stage, where: Elsewhere, at: datetime) -> None:
    """Record that the only stage of a new job runs where somebody else started it, since then.

    The node is touched. Raises IntegrityError if a device has not what is claimed; the caller holds a savepoint.
    """
    stage.attempt_count = 1
    attempt = Attempt(
        id=where.attempt,
        stage=stage,
        number=1,
        epoch=1,
        why_here=where.why.text,
        said={"why_here": where.why.said},
        created_at=where.began_at,
        started_at=where.began_at,
    )
    part = Part(
        id=where.part, attempt=attempt, node_id=where.node, epoch=1, phase=Phase.RUNNING, started_at=where.began_at
    )
    move([stage], What.PLACE)
    stage.started_at = job.started_at = where.began_at
    move([stage], What.START)
    attempt.save(force_insert=True)
    part.save(force_insert=True)
    Claim.objects.bulk_create(
        Claim(
            part=part, device_id=device, milli=milli, memory_bytes=memory_bytes, opened_at=where.began_at,
            closed_at=where.ended_at,
        )
        for device, milli, memory_bytes in where.claims
    )  # fmt: skip
    settle([job], [Note(job, "joined", where.why, where.actor, stage.name, 1)], at, [stage])


def _accelerators(placing: Placing) -> int:
    """Return the number of accelerators on all nodes together; a share of one counts as one."""
    asks = placing.stage.request["alternatives"][placing.alternative]["asks"]
    return len(placing.ranks) * sum(ask["count"] for ask in asks if ask["kind"] != "cpu")


def _claim(
    part: Part, grant: Grant, where: Mapping[tuple[str, partitions.Partition], divisions.PartitionPlace], at: datetime
) -> Claim:
    claim = Claim(
        part=part,
        device_id=uuid.UUID(grant.device),
        milli=grant.milli,
        memory_bytes=grant.memory_bytes,
        opened_at=at,
    )
    if grant.part is not None:
        place = where[grant.device, grant.part]
        claim.partition, claim.partition_uuid = grant.part.profile, place.uuid
        claim.slots = (grant.part.start, grant.part.start + place.size)
    return claim


def _resized(jobs: dict[uuid.UUID, Job], placings: Sequence[Placing]) -> list[Note]:
    """Return notes for elastic stages that resume on another number of nodes; their new attempts count already."""
    elastic = {p.stage.id: p for p in placings if demand.most_nodes(p.stage.request) and p.stage.attempt_count > 1}
    if not elastic:
        return []
    sizes: Counter[uuid.UUID] = Counter()
    parts = Part.objects.filter(attempt__stage__in=elastic)
    for stage_id, number in parts.values_list("attempt__stage_id", "attempt__number"):
        sizes[stage_id] += number == elastic[stage_id].stage.attempt_count - 1
    notes = []
    for stage_id, was in sorted(sizes.items()):
        placing = elastic[stage_id]
        stage, size = placing.stage, len(placing.ranks)
        if size != was:
            within = demand.spread(stage.request)
            goes_on = told(clause("GoesOnWith", stage=stage.name, was=was, now=size, within=within))
            sizes_ = {"from": was, "to": size}
            job = jobs[stage.job_id]
            notes.append(Note(job, "resized", goes_on, "engine", stage.name, stage.attempt_count, sizes_))
    return notes


def _announce(jobs: Sequence[Job]) -> None:
    keys = ["jobs", *(f"job:{job.number}" for job in jobs[:50]), "fleet"]
    transaction.on_commit(changes.wake)
    transaction.on_commit(lambda: changes.announce(*keys))
