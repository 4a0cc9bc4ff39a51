"""Pools: named sets of nodes with their own rules."""

from __future__ import annotations

import msgspec
from django.db.models import Count, Q
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource
from controlplane.natural import natural_key
from controlplane.pools import models as rows


class Pool(msgspec.Struct, frozen=True):
    """A named set of nodes with its own profile and limits. ``repartition`` tells that devices here may be divided for
    stages that ask for a partition, and for ``min_runtime_s`` after its start no stage is stopped for another.
    ``on_node_lost`` holds for stages whose job file does not say it. ``shadow_profile`` thinks beside the profile and
    decides nothing; empty where none does."""

    name: str
    profile: str
    shadow_profile: str
    shared_storage: bool
    default_limit_s: int
    max_limit_s: int
    min_runtime_s: int
    on_node_lost: str
    stopped_by: str
    repartition: bool
    nodes: int


class PoolList(msgspec.Struct, frozen=True):
    """All pools, by name."""

    results: list[Pool]


def _shown(pool: rows.Pool, nodes: int) -> Pool:
    return Pool(
        name=pool.name,
        profile=pool.profile,
        shadow_profile=pool.shadow_profile,
        shared_storage=bool(pool.storage_path),
        default_limit_s=pool.default_limit_s,
        max_limit_s=pool.max_limit_s,
        min_runtime_s=pool.min_runtime_s,
        on_node_lost=pool.on_node_lost,
        stopped_by=pool.stopped_by,
        repartition=pool.repartition,
        nodes=nodes,
    )


class Pools(Resource):
    """The list of pools."""

    @extend_schema(operation_id="pools_list", responses={200: PoolList})
    def get(self, request: Request) -> Response:
        """All pools of the cluster."""
        pools = rows.Pool.objects.annotate(node_count=Count("nodes", filter=~Q(nodes__state="LOST")))
        ordered = sorted(pools, key=lambda pool: natural_key(pool.name))
        return Response(PoolList([_shown(pool, pool.node_count) for pool in ordered]))


class OnePool(Resource):
    """One pool."""

    @extend_schema(operation_id="pools_get", responses={200: Pool, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A pool by its name."""
        pool = rows.Pool.objects.filter(name=name).first()
        if pool is None:
            raise not_found(_("pool {name}").format(name=name[:63]))
        return Response(_shown(pool, pool.nodes.exclude(state="LOST").count()))
