"""Pools: named sets of nodes with their own rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Count, Model, Q, QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, permitted, signed_in, taken
from controlplane.jobs.section import FieldError
from controlplane.natural import natural_key
from controlplane.pools import access, profiles
from controlplane.pools import models as rows
from controlplane.queries.reading import etag
from controlplane.scheduling import promise_rate, shadow


class Promises(msgspec.Struct, frozen=True):
    """Of ``told`` stages that were told in the last seven days when they would start, ``kept`` began by the end of that
    range; who still waits after it is counted as missed. ``rate`` is from 0 to 1, null where nobody was told."""

    kept: int
    told: int
    rate: float | None


M = TypeVar("M", bound=Model)


class ShadowSum(msgspec.Struct, frozen=True):
    """What the shadow profile would have done in the last ``cycles`` in which it thought (a thousand at most): in
    ``differing`` of them something else, with so many stages started under one of the two only, placed elsewhere, or
    stopped by one of the two only (spared, evicted). Those that wait were expected ``earlier_s`` seconds sooner."""

    cycles: int
    differing: int
    only_active: int
    only_other: int
    elsewhere: int
    spared: int
    evicted: int
    earlier_s: float | None


class Pool(msgspec.Struct, frozen=True):
    """A named set of nodes with its own profile and limits. ``repartition`` tells that devices here may be divided for
    stages that ask for a partition, and for ``min_runtime_s`` after its start no stage is stopped for another.
    Nodes that keep projects less apart than ``isolation`` says (none, user, private, full) run nothing of it.
    ``on_node_lost`` holds for stages whose job file does not say it. ``decides`` is the version that the profile's name
    stands for now. ``shadow_profile`` thinks beside it and decides nothing; empty where none does, and ``shadow`` sums
    up what it would have done. ``promises`` tells how many starts came by the end of the range first announced."""

    name: str
    profile: str
    decides: str
    shadow_profile: str
    shadow: ShadowSum | None
    promises: Promises
    shared_storage: bool
    default_limit_s: int
    max_limit_s: int
    min_runtime_s: int
    on_node_lost: str
    stopped_by: str
    repartition: bool
    isolation: str
    nodes: int
    restricted: bool
    usable: bool


class PoolList(msgspec.Struct, frozen=True):
    """All pools, by name."""

    results: list[Pool]


class PoolUsers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may use a pool, by name."""

    projects: Annotated[list[str], msgspec.Meta(max_length=1000)] = []
    groups: Annotated[list[str], msgspec.Meta(max_length=100)] = []


class ProfileChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The profiles that a pool is to have; what is left out stays. An empty ``shadow_profile`` ends thinking beside."""

    profile: str | None = None
    shadow_profile: str | None = None


def _shown(pools: Iterable[rows.Pool], user: User) -> list[Pool]:
    """The pools as the API tells them, with how many nodes each has that are not lost."""
    pools = list(pools)
    kept = promise_rate.by_pool()
    beside = shadow.outcomes() if any(pool.shadow_profile for pool in pools) else {}
    named = [pool.name for pool in pools]
    counted = rows.Pool.objects.filter(name__in=named).annotate(count=Count("nodes", filter=~Q(nodes__state="LOST")))
    nodes = dict(counted.values_list("name", "count"))
    owned = rows.Profile.objects.exclude(active=None).filter(name__in={pool.profile for pool in pools})
    active = dict(owned.values_list("name", "active__number"))
    may_use, projects = access.usable_by(user), list(permissions.submittable(user))
    restricted = set(rows.Pool.objects.exclude(allowed_projects=None, allowed_groups=None).values_list("pk", flat=True))
    return [
        Pool(
            name=pool.name,
            profile=pool.profile,
            decides=f"{pool.profile}@{active[pool.profile]}" if pool.profile in active else pool.profile,
            shadow_profile=pool.shadow_profile,
            shadow=ShadowSum(**found) if (found := beside.get((pool.name, pool.shadow_profile))) else None,
            promises=_promises(kept.get(pool.name, promise_rate.PromiseRate())),
            shared_storage=bool(pool.storage_path),
            default_limit_s=pool.default_limit_s,
            max_limit_s=pool.max_limit_s,
            min_runtime_s=pool.min_runtime_s,
            on_node_lost=pool.on_node_lost,
            stopped_by=pool.stopped_by,
            repartition=pool.repartition,
            isolation=pool.isolation,
            nodes=nodes[pool.name],
            restricted=pool.pk in restricted,
            usable=any(may_use(pool, project) for project in projects) if projects else pool.pk not in restricted,
        )
        for pool in pools
    ]


def _promises(kept: promise_rate.PromiseRate) -> Promises:
    return Promises(kept.kept, kept.told, kept.rate)


class Pools(Resource):
    """The list of pools."""

    @extend_schema(operation_id="pools_list", responses={200: PoolList})
    def get(self, request: Request) -> Response:
        """All pools of the cluster."""
        ordered = sorted(rows.Pool.objects.all(), key=lambda pool: natural_key(pool.name))
        return Response(PoolList(_shown(ordered, signed_in(request))))


class OnePool(Resource):
    """One pool."""

    @extend_schema(operation_id="pools_get", responses={200: Pool, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A pool by its name."""
        return Response(_shown([_row(name)], signed_in(request))[0])


class PoolProfile(Resource):
    """By which profile a pool decides."""

    scope = "admin"

    @extend_schema(
        operation_id="pools_profile",
        request=ProfileChoice,
        responses={200: Pool, 403: Problem, 404: Problem, 422: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Gives the pool another profile, or another one that thinks beside it, from the next cycle on. Only staff."""
        permitted(request, Permit.CHANGE_POOLS, _("change the profile of a pool"))
        body, pool = taken(request, ProfileChoice), _row(name)
        profiles.assign(pool, profile=body.profile, shadow=body.shadow_profile)
        return Response(_shown([pool], signed_in(request))[0])


class PoolAccess(Resource):
    """Who may use a pool."""

    scope = "admin"

    @extend_schema(operation_id="pools_access", responses={200: PoolUsers, 403: Problem, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """The projects and groups that may use the pool; everybody where both are empty."""
        permitted(request, Permit.SEE_POOLS, _("see who may use a pool"))
        return Response(PoolUsers(**access.told(_row(name))))

    @extend_schema(
        operation_id="pools_allow",
        request=PoolUsers,
        responses={200: PoolUsers, 403: Problem, 404: Problem, 412: Problem, 422: Problem},
        parameters=[OpenApiParameter("If-Match", str, "header", description="The ETag of what was read.")],
    )
    def put(self, request: Request, name: str) -> Response:
        """Lets these projects and groups use the pool and nobody else; everybody where both are empty.

        With ``If-Match`` only where it is still as it was read."""
        permitted(request, Permit.CHANGE_POOLS, _("set who may use a pool"))
        body = taken(request, PoolUsers)
        with transaction.atomic():
            pool = rows.Pool.objects.select_for_update().get(pk=_row(name).pk)
            now = etag(msgspec.json.encode(PoolUsers(**access.told(pool))))
            wanted = request.headers.get("If-Match", "*")
            if wanted != "*" and now not in [one.strip() for one in wanted.split(",")]:
                raise Refused(412, "changed_meanwhile", _("somebody changed this meanwhile; read it again"))
            projects = _known(Project.objects.all(), body.projects, "projects", _("project {name}"))
            groups = _known(Group.objects.all(), body.groups, "groups", _("group {name}"))
            access.allow(pool, projects, groups)
        return Response(PoolUsers(**access.told(pool)))


def _known(found: QuerySet[M], names: list[str], field: str, what: str) -> list[M]:
    """The rows of these names; raises 422 for the first that there is none of."""
    by_name = {str(row): row for row in found.filter(name__in=names)}
    for index, name in enumerate(names):
        if name not in by_name:
            detail = _("there is no {what}").format(what=what.format(name=name[:63]))
            fault = FieldError(f"/{field}/{index}", detail, "unknown")
            raise Refused(422, "invalid", detail, errors=[fault])
    return list(by_name.values())


def _row(name: str) -> rows.Pool:
    pool = rows.Pool.objects.filter(name=name).first()
    if pool is None:
        raise not_found(_("pool {name}").format(name=name[:63]))
    return pool
