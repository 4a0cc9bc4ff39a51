"""The arrays that a user may see: their elements by state, and the best of what these reported."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import django_filters
import msgspec
from django.db import connection
from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs import arrays, halving
from controlplane.jobs import models as rows
from controlplane.queries.filters import SubmittedFilterSet
from controlplane.queries.jobs import labelled, states_named
from controlplane.queries.reading import Representation, listed, seen
from controlplane.queries.refusals import Unseen
from scheduler.core.model.halving import Goal
from scheduler.core.model.lifecycle import FINAL, Cause, State

GOALS = ("min", "max")
# Names of metrics that are told of an array.
MOST_METRICS = 64


class BestElement(msgspec.Struct, frozen=True):
    """The element with the smallest or largest value of a metric, as last reported by the last of its stages that
    reports it."""

    metric: str
    goal: str
    value: float
    index: int
    job: int
    parameters: dict[str, Any]


class Rung(msgspec.Struct, frozen=True):
    """A rung of successive halving: ``reached`` elements reported a value at ``step`` or later, and ``stopped`` of them
    were stopped there. ``best`` is the best value at this rung, of elements with several stages that of the last stage
    that reached it."""

    rung: int
    step: int
    reached: int
    stopped: int
    best: float | None


class SweepHalving(msgspec.Struct, frozen=True):
    """By which rule elements of a sweep are stopped early, and how many reached its rungs."""

    metric: str
    goal: Goal
    min_steps: int
    reduction_factor: int
    rungs: list[Rung]


class ElementRung(msgspec.Struct, frozen=True):
    """The rung at which an element was stopped, or the highest that it reached, with what it reported there.

    ``value`` is null for no finite number.

    ``verdict`` is *goes_on* or *stopped*, and empty until it was judged: then it was one of ``among`` elements, and
    ``cutoff`` was needed to go on. ``cutoff`` is null while too few are compared, and where any number was enough.
    """

    rung: int
    step: int
    value: float | None
    verdict: str
    among: int | None
    cutoff: float | None


class Array(msgspec.Struct, frozen=True):
    """Many jobs from one file. ``count`` elements were submitted; ``counts`` has those that are kept, by state.

    ``state`` is that of the whole, from those of its elements as that of a job from its stages; ``stopped_early`` of
    them, which are among the CANCELLED, count as completed. ``started_at`` is the first start, ``ended_at`` the last
    end once all have ended.
    """

    number: int
    name: str
    project: str
    user: str
    pool: str
    state: State
    count: int
    counts: dict[str, int]
    stopped_early: int
    max_parallel: int | None
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class ArrayDetail(Array, frozen=True):
    """An array, what its file declares of each parameter, the names of the numbers that its elements reported, the best
    of one where it was asked for, and the rungs of a sweep whose elements are stopped early."""

    parameters: dict[str, Any] = {}
    metrics: list[str] = []
    best: BestElement | None = None
    halving: SweepHalving | None = None


class ArrayElement(msgspec.Struct, frozen=True):
    """An element of an array in short: ``job`` is its number, ``values`` the numbers that it reported last."""

    index: int
    job: int
    state: State
    cause: str
    parameters: dict[str, Any]
    values: dict[str, float]
    rung: ElementRung | None
    started_at: datetime | None
    ended_at: datetime | None


class ArrayElementPage(msgspec.Struct, frozen=True):
    """One page of an array's elements, in the order of their indexes."""

    results: list[ArrayElement]
    next: str | None
    previous: str | None


def visible(user: User) -> QuerySet[rows.Array]:
    """The arrays that this user may see."""
    return (
        rows.Array.objects.filter(permissions.visible_jobs(user))
        .select_related("project", "user", "pool")
        .defer("asked")
    )


def found(user: User, name: str) -> rows.Array:
    """The array with this number, if this user may see it; raises 404 otherwise."""
    row = visible(user).filter(number=int(name)).first() if re.fullmatch(r"[0-9]{1,18}", name) else None
    if row is None:
        raise Unseen(_("array {name}").format(name=name[:40]))
    return row


def shown(arrays_: Iterable[rows.Array], user: User | None = None) -> list[Array]:
    """These arrays, which the user may see, in the same order."""
    arrays_ = list(arrays_)
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    times: dict[int, list[Any]] = {}
    jobs = rows.Job.objects.filter(array__in=arrays_).order_by()
    early = Count("id", filter=Q(state=State.CANCELLED, cause=Cause.EARLY_STOPPED))
    told = jobs.values_list("array", "state").annotate(
        n=Count("id"), first=Min("started_at"), last=Max("ended_at"), early=early
    )
    stopped: dict[int, int] = defaultdict(int)
    for number, state, count, first, last, early_ in told.order_by("array", "state"):
        counts[number or 0][state] = count
        stopped[number or 0] += early_
        was = times.setdefault(number or 0, [None, None])
        was[0] = min((at for at in (was[0], first) if at), default=None)
        was[1] = max((at for at in (was[1], last) if at), default=None)
    return [
        _array(row, counts[row.number], stopped[row.number], *times.get(row.number, (None, None))) for row in arrays_
    ]


def _array(
    row: rows.Array, counts: dict[str, int], stopped_early: int, first: datetime | None, last: datetime | None
) -> Array:
    return Array(
        number=row.number,
        name=row.name,
        project=row.project.name,
        user=row.user.get_username(),
        pool=row.pool.name,
        state=arrays.state_of(counts, stopped_early),
        count=row.count,
        counts=counts,
        stopped_early=stopped_early,
        max_parallel=row.max_parallel,
        submitted_at=row.submitted_at,
        started_at=first,
        ended_at=last if set(counts) <= FINAL else None,
    )


def detail(row: rows.Array, metric: str = "", goal: str = "min") -> ArrayDetail:
    """This array with the best element by a metric, if one is named."""
    (array,) = shown([row])
    return ArrayDetail(
        **msgspec.structs.asdict(array),
        parameters=row.asked.get("parameters") or {},
        metrics=metrics(row),
        best=_best(row, metric, goal) if metric else None,
        halving=_halving(row, row.halving) if row.halving else None,
    )


# Stages of an element are compared each with its like, and it counts once; the best is that of the last stage that
# reached the rung, because another stage's number of this name may be of something else.
_RUNGS = """
SELECT r.rung, count(DISTINCT j.id), count(DISTINCT j.id) FILTER (WHERE r.verdict = 'stopped' AND j.cause = %s),
       {best}(r.value) FILTER (WHERE r.stage_index = r.last)
FROM (SELECT *, max(stage_index) OVER (PARTITION BY rung) AS last FROM jobs_rungresult WHERE array_id = %s) r
     JOIN jobs_stage s ON s.id = r.stage_id JOIN jobs_job j ON j.id = s.job_id
GROUP BY r.rung
"""


def _halving(row: rows.Array, stored: Mapping[str, Any]) -> SweepHalving:
    rule = halving.rule(stored)
    with connection.cursor() as cursor:
        best = "max" if rule.goal is Goal.MAXIMIZE else "min"
        cursor.execute(_RUNGS.format(best=best), [Cause.EARLY_STOPPED, row.number])
        found = {rung: counted for rung, *counted in cursor.fetchall()}
    nobody = (0, 0, None)
    return SweepHalving(
        metric=rule.metric,
        goal=rule.goal,
        min_steps=rule.min_steps,
        reduction_factor=rule.reduction_factor,
        rungs=[Rung(at, step, *found.get(at, nobody)) for at, step in enumerate(rule.steps(), 1)],
    )


# Numbers beyond the range of a float are none; texts stay in the database, where they may be long.
_NUMBERS = """
SELECT s.job_id, v.key, v.number::float8 FROM jobs_stage s CROSS JOIN LATERAL (
    SELECT key, CASE WHEN jsonb_typeof(value) = 'number' THEN value::numeric END AS number FROM jsonb_each(s.values)) v
WHERE s.job_id = ANY(%s) AND abs(v.number) < 1e300 ORDER BY s.index
"""
_METRICS = """
SELECT DISTINCT v.key FROM jobs_job j JOIN jobs_stage s ON s.job_id = j.id CROSS JOIN LATERAL jsonb_each(s.values) v
WHERE j.array_id = %s AND jsonb_typeof(v.value) = 'number' ORDER BY 1 LIMIT %s
"""
# As in the list of elements, the last stage that reported the number counts.
_BEST = """
SELECT v.value::float8, v.array_index, v.number, v.parameters FROM (
    SELECT DISTINCT ON (j.id) n.value, j.array_index, j.number, j.parameters
    FROM jobs_job j JOIN jobs_stage s ON s.job_id = j.id CROSS JOIN LATERAL (
        SELECT CASE WHEN jsonb_typeof(s.values->%s) = 'number' THEN (s.values->%s)::numeric END AS value) n
    WHERE j.array_id = %s AND abs(n.value) < 1e300 ORDER BY j.id, s.index DESC) v
ORDER BY v.value {order}, v.array_index LIMIT 1
"""


def metrics(row: rows.Array) -> list[str]:
    """The names of the numbers that elements of this array reported, at most :data:`MOST_METRICS`."""
    with connection.cursor() as cursor:
        cursor.execute(_METRICS, [row.number, MOST_METRICS])
        return [name for (name,) in cursor.fetchall()]


def _best(row: rows.Array, metric: str, goal: str) -> BestElement | None:
    with connection.cursor() as cursor:
        order = "DESC" if goal == "max" else "ASC"
        cursor.execute(_BEST.format(order=order), [metric, metric, row.number])
        one = cursor.fetchone()
    if one is None:
        return None
    value, index, job, parameters = one
    return BestElement(metric, goal, value, index, job, _parameters(parameters))


def _parameters(stored: Any) -> dict[str, Any]:
    return (msgspec.json.decode(stored) if isinstance(stored, str | bytes) else stored) or {}


def elements(row: rows.Array, jobs: Iterable[rows.Job]) -> list[ArrayElement]:
    """These elements of an array in short, in the same order."""
    jobs = list(jobs)
    values: dict[Any, dict[str, float]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(_NUMBERS, [[job.id for job in jobs]])
        for job_id, name, value in cursor.fetchall():
            values[job_id][name] = value
    reached = _reached(jobs) if row.halving else {}
    return [
        ArrayElement(
            index=job.array_index or 0,
            job=job.number,
            state=State(job.state),
            cause=job.cause,
            parameters=job.parameters or {},
            values=values[job.id],
            rung=reached.get(job.id),
            started_at=job.started_at,
            ended_at=job.ended_at,
        )
        for job in jobs
    ]


def _reached(jobs: Sequence[rows.Job]) -> dict[uuid.UUID, ElementRung]:
    """The rung to tell of each of these elements; of several stages that of the one that was stopped."""
    was_stopped = Q(verdict=rows.RungResult.Judgement.STOPPED)
    found = rows.RungResult.objects.filter(stage__job__in=jobs).annotate(was_stopped=was_stopped)
    told = found.values_list("stage__job", "rung", "step", "value", "verdict", "among", "cutoff")
    return {
        job: ElementRung(rung, step, value, verdict, among, cutoff)
        for job, rung, step, value, verdict, among, cutoff in told.order_by("was_stopped", "rung")
    }


def elements_of(row: rows.Array) -> QuerySet[rows.Job]:
    """The elements of this array, without what is not shown of them in short."""
    return row.jobs.defer("spec", "labels")


class ArrayFilter(SubmittedFilterSet):
    """Filters of arrays."""

    state = django_filters.CharFilter(
        method="in_states",
        help_text="With an element in one of these states, separated by commas; or active, waiting, ended.",
    )
    project = django_filters.CharFilter("project__name", help_text="Name of a project.")
    pool = django_filters.CharFilter("pool__name", help_text="Name of a pool.")
    user = django_filters.CharFilter(method="of_user", help_text="Name of a user, or me.")
    label = django_filters.CharFilter(method="with_label", help_text="name or name=value, of the file's labels.")
    q = django_filters.CharFilter(method="like", help_text="An array's number, or a part of its name.")

    def in_states(self, found: QuerySet[rows.Array], name: str, value: str) -> QuerySet[rows.Array]:
        return found.filter(Exists(rows.Job.objects.filter(array=OuterRef("number"), state__in=states_named(value))))

    def of_user(self, found: QuerySet[rows.Array], name: str, value: str) -> QuerySet[rows.Array]:
        return found.filter(user=self.user) if value == "me" else found.filter(user__username=value)

    def with_label(self, found: QuerySet[rows.Array], name: str, value: str) -> QuerySet[rows.Array]:
        return found.filter(Exists(rows.Job.objects.filter(labelled(value), array=OuterRef("number"))))

    def like(self, found: QuerySet[rows.Array], name: str, value: str) -> QuerySet[rows.Array]:
        word = value.strip().lstrip("#")
        named = Q(name__icontains=value.strip())
        return found.filter(named | Q(number=int(word)) if re.fullmatch(r"[0-9]{1,18}", word) else named)


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the arrays that ``params`` ask for."""
    return listed(user, "/arrays", params, ArrayFilter(params, visible(user), user=user), "-number", shown)


def one(user: User, row: rows.Array, metric: str = "", goal: str = "min") -> Representation:
    """This array, which the user may see."""
    asked = f"?{urlencode({'metric': metric, 'goal': goal})}" if metric else ""
    return seen(user, f"/arrays/{row.number}{asked}", detail(row, metric, goal))
