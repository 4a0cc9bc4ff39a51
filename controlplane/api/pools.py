"""Pools: named sets of nodes with their own rules."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.db.models import Count, Q
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource, permitted, taken
from controlplane.natural import natural_key
from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.scheduling import promise_rate, shadow


class Promises(msgspec.Struct, frozen=True):
    """Of ``told`` stages that were told in the last seven days when they would start, ``kept`` began by the end of that
    range; who still waits after it is counted as missed. ``rate`` is from 0 to 1, null where nobody was told."""

    kept: int
    told: int
    rate: float | None


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


class PoolList(msgspec.Struct, frozen=True):
    """All pools, by name."""

    results: list[Pool]


class ProfileChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The profiles that a pool is to have; what is left out stays. An empty ``shadow_profile`` ends thinking beside."""

    profile: str | None = None
    shadow_profile: str | None = None


def _shown(pools: Iterable[rows.Pool]) -> list[Pool]:
    """The pools as the API tells them, with how many nodes each has that are not lost."""
    pools = list(pools)
    kept = promise_rate.by_pool()
    beside = shadow.outcomes() if any(pool.shadow_profile for pool in pools) else {}
    named = [pool.name for pool in pools]
    counted = rows.Pool.objects.filter(name__in=named).annotate(count=Count("nodes", filter=~Q(nodes__state="LOST")))
    nodes = dict(counted.values_list("name", "count"))
    owned = rows.Profile.objects.exclude(active=None).filter(name__in={pool.profile for pool in pools})
    active = dict(owned.values_list("name", "active__number"))
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
        return Response(PoolList(_shown(ordered)))


class OnePool(Resource):
    """One pool."""

    @extend_schema(operation_id="pools_get", responses={200: Pool, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A pool by its name."""
        return Response(_shown([_row(name)])[0])


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
        return Response(_shown([pool])[0])


def _row(name: str) -> rows.Pool:
    pool = rows.Pool.objects.filter(name=name).first()
    if pool is None:
        raise not_found(_("pool {name}").format(name=name[:63]))
    return pool
