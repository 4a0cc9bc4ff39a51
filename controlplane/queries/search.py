"""Finds what a user may see by its name: jobs, nodes, devices, pools, projects and people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from django.db.models import BigIntegerField, F, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Lower, NullIf, StrIndex

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Array, Job
from controlplane.pools.models import Pool
from controlplane.queries.jobs import visible

LONGEST: Final = 100
MOST: Final = 50
# Names are compared one by one, and only those of so many newest jobs that are no elements of arrays, and of so many
# newest arrays: a search takes as long with a million jobs as with this many, whatever the user may see of them.
NEWEST_JOBS: Final = 50_000
_DEVICE: Final = re.compile(r"(\S+?)[\s:/]+([a-z]+)?\s*([0-9]{1,4})")


class SearchHit(msgspec.Struct, frozen=True):
    """What was found: a job, array, node, device, pool, project or user. ``path`` is that of its page. ``state`` is
    that of a job or node, or the health of a device; empty for others."""

    kind: str
    name: str
    detail: str
    state: str
    path: str


class Search(msgspec.Struct, frozen=True):
    """What was found by a search: of each kind the best few, exact names first. Jobs are found by number whatever their
    age, and by name among the newest 50,000; arrays likewise, and their elements by number only."""

    results: list[SearchHit]


def search(user: User, words: str, most: int = 6) -> Search:
    """What this user may see whose name contains ``words``, at most ``most`` of each kind."""
    text = words.strip().lower()[:LONGEST]
    if not text:
        return Search([])
    finders = (_jobs, _nodes, _devices, _pools, _projects, _people)
    return Search([found for find in finders for found in find(user, text, most)])


def _near(rows: QuerySet[Any], field: str, text: str, most: int) -> QuerySet[Any]:
    """The rows whose ``field`` contains ``text``: the earlier, the better; then the shorter ones in order."""
    place = StrIndex(Lower(field), Value(text))
    return rows.annotate(place=place).filter(place__gt=0).order_by("place", field)[:most]


def _jobs(user: User, text: str, most: int) -> Iterator[SearchHit]:
    """Jobs and arrays by number, or by name among the newest; an element of an array by its number only."""
    number = re.fullmatch(r"#?([0-9]{1,18})(?:_([0-9]{1,9}))?", text)
    jobs = visible(user).select_related("user", "project")
    arrays = Array.objects.filter(permissions.visible_jobs(user)).select_related("user", "project")
    if number and number[2]:
        yield from map(_job, jobs.filter(array=int(number[1]), array_index=int(number[2])))
    elif number:
        yield from map(_job, jobs.filter(number=int(number[1])))
        yield from map(_array, arrays.filter(number=int(number[1])))
    named = Q(name__icontains=text)
    if number:
        named &= ~Q(number=int(number[1]))
    ordinary = jobs.filter(named, _newest(Job.objects.filter(array=None)), array=None)
    yield from map(_job, ordinary.order_by("-number")[:most])
    yield from map(_array, arrays.filter(named, _newest(Array.objects.all())).order_by("-number")[:most])


def _newest(rows: QuerySet[Any]) -> Q:
    """Whether a row is one of the newest ``NEWEST_JOBS`` of these, found in their index by number."""
    older = rows.order_by("-number").values("number")[NEWEST_JOBS : NEWEST_JOBS + 1]
    return Q(number__gt=Coalesce(Subquery(older), Value(0), output_field=BigIntegerField()))


def _whose(job: Job | Array) -> str:
    return f"#{job.number} · {job.user.get_username()} · {job.project.name}"


def _job(job: Job) -> SearchHit:
    return SearchHit("job", job.name, _whose(job), job.state, f"/jobs/{job.number}")


def _array(array: Array) -> SearchHit:
    return SearchHit("array", array.name, _whose(array), "", f"/arrays/{array.number}")


def _nodes(user: User, text: str, most: int) -> Iterator[SearchHit]:
    yield from nodes(text, most)


def nodes(text: str, most: int) -> Iterator[SearchHit]:
    """The nodes whose name contains ``text``, which is in lower case; everybody sees them."""
    for node in _near(Node.objects.prefetch_related("pools"), "name", text, most):
        pools = ", ".join(sorted(pool.name for pool in node.pools.all()))
        yield SearchHit("node", node.name, pools, node.state, f"/nodes/{node.name}")


def _devices(user: User, text: str, most: int) -> Iterator[SearchHit]:
    """Devices by UUID, model, or place, such as ``g07:3`` or ``g07 gpu3``."""
    here = Q(uuid__icontains=text) | Q(model__icontains=text)
    if place := _DEVICE.fullmatch(text):
        on = Q(node__name__iexact=place[1], index=int(place[3]))
        here |= on & Q(kind=place[2]) if place[2] else on & ~Q(kind="cpu")
    devices = Device.objects.filter(here, present=True).select_related("node")
    for one in devices.order_by("node__name", "kind", "index")[:most]:
        detail = " · ".join(part for part in (one.model, one.uuid) if part)
        path = f"/devices/{quote(one.uuid, safe='')}"
        yield SearchHit("device", f"{one.node.name} {one.kind}{one.index}", detail, one.health, path)


def _pools(user: User, text: str, most: int) -> Iterator[SearchHit]:
    for pool in _near(Pool.objects.all(), "name", text, most):
        yield SearchHit("pool", pool.name, pool.profile, "", f"/nodes?{urlencode({'pool': pool.name})}")


def _projects(user: User, text: str, most: int) -> Iterator[SearchHit]:
    for project in _near(permissions.visible_projects(user), "name", text, most):
        yield SearchHit(
            "project", project.name, project.description, "", f"/jobs?{urlencode({'project': project.name})}"
        )


def people(user: User) -> QuerySet[User]:
    """The people whom this user may see: members of the projects that they see, and themselves."""
    if permissions.may(user, Permit.SEE_PEOPLE):
        return User.objects.all()
    members = User.objects.filter(member__project__in=permissions.visible_projects(user))
    return User.objects.filter(Q(pk=user.pk) | Q(pk__in=members.values("pk")))


def _people(user: User, text: str, most: int) -> Iterator[SearchHit]:
    """People by their user name or their own name."""
    own = people(user).filter(
        Q(username__icontains=text) | Q(first_name__icontains=text) | Q(last_name__icontains=text)
    )
    place = NullIf(StrIndex(Lower("username"), Value(text)), Value(0))  # null: only their own name contains it
    for person in own.order_by(place.asc(nulls_last=True), F("username"))[:most]:
        path = f"/jobs?{urlencode({'user': person.get_username()})}"
        yield SearchHit("user", person.get_username(), person.get_full_name(), "", path)
