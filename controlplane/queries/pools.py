"""Pools: named sets of nodes with their own profiles and limits."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.db.models import Count, Q

from controlplane.accounts.models import User
from controlplane.natural import natural_key
from controlplane.pools import access
from controlplane.pools import models as rows
from controlplane.queries.reading import Representation, seen
from controlplane.scheduling import promise_rate, shadow


class Promises(msgspec.Struct, frozen=True):
    """Of ``told`` stages to which an expected start was announced in the last seven days, ``kept`` started by the end
    of that range; one that still waits after it is counted as missed. ``rate`` is from 0 to 1, null if there were
    none."""

    kept: int
    told: int
    rate: float | None


class ShadowSum(msgspec.Struct, frozen=True):
    """What the shadow profile would have done in its last ``cycles`` cycles (a thousand at most): in ``differing`` of
    them its plan differed, with so many stages started under one of the two only, placed elsewhere, or stopped by one
    of the two only (spared, evicted). Stages that wait were expected ``earlier_s`` seconds sooner."""

    cycles: int
    differing: int
    only_active: int
    only_other: int
    elsewhere: int
    spared: int
    evicted: int
    earlier_s: float | None


class PoolMount(msgspec.Struct, frozen=True):
    """A folder of the nodes of which jobs may mount what is in it, also to write there if it is ``writable``."""

    path: str
    writable: bool


class Pool(msgspec.Struct, frozen=True):
    """A named set of nodes with its own profile and limits. ``repartition`` tells that devices here may be partitioned
    for stages that ask for a partition. For ``min_runtime_s`` seconds after its start no stage is preempted. Nodes with
    weaker isolation of projects than ``isolation`` (none, user, private, full) run nothing of it. ``on_node_lost`` is
    the default for stages whose job file does not set it. ``decides`` is the version that the profile's name stands for
    now. ``shadow_profile`` plans the same cycles without effect; empty if there is none; ``shadow`` sums up its
    outcomes. ``promises`` tells how many stages started by the end of the range first announced. A ``restricted`` pool
    is for some projects and groups only; ``usable`` tells whether you may submit to it. With ``measure_links`` its idle
    nodes measure the bandwidth from each other."""

    name: str
    profile: str
    decides: str
    shadow_profile: str
    shadow: ShadowSum | None
    promises: Promises
    shared_storage: bool
    mounts: list[PoolMount]
    default_limit_s: int
    max_limit_s: int
    min_runtime_s: int
    on_node_lost: str
    stopped_by: str
    repartition: bool
    measure_links: bool
    isolation: str
    nodes: int
    restricted: bool
    usable: bool


def shown(pools: Iterable[rows.Pool], user: User) -> list[Pool]:
    """These pools by name, with the number of their nodes that are not lost; every user sees them."""
    pools = sorted(pools, key=lambda pool: natural_key(pool.name))
    kept = promise_rate.by_pool()
    beside = shadow.outcomes() if any(pool.shadow_profile for pool in pools) else {}
    named = [pool.name for pool in pools]
    counted = rows.Pool.objects.filter(name__in=named).annotate(count=Count("nodes", filter=~Q(nodes__state="LOST")))
    nodes = dict(counted.values_list("name", "count"))
    owned = rows.Profile.objects.exclude(active=None).filter(name__in={pool.profile for pool in pools})
    active = dict(owned.values_list("name", "active__number"))
    usable = access.usable_to(user)
    return [
        Pool(
            name=pool.name,
            profile=pool.profile,
            decides=f"{pool.profile}@{active[pool.profile]}" if pool.profile in active else pool.profile,
            shadow_profile=pool.shadow_profile,
            shadow=ShadowSum(**found) if (found := beside.get((pool.name, pool.shadow_profile))) else None,
            promises=_promises(kept.get(pool.name, promise_rate.PromiseRate())),
            shared_storage=bool(pool.storage_path),
            mounts=[PoolMount(each["path"], each.get("writable", False)) for each in pool.mounts],
            default_limit_s=pool.default_limit_s,
            max_limit_s=pool.max_limit_s,
            min_runtime_s=pool.min_runtime_s,
            on_node_lost=pool.on_node_lost,
            stopped_by=pool.stopped_by,
            repartition=pool.repartition,
            measure_links=pool.measure_links,
            isolation=pool.isolation,
            nodes=nodes[pool.name],
            restricted=pool.restricted,
            usable=usable(pool),
        )
        for pool in pools
    ]


def _promises(kept: promise_rate.PromiseRate) -> Promises:
    return Promises(kept.kept, kept.told, kept.rate)


def names() -> list[str]:
    """The names of all pools, in natural order."""
    return sorted(rows.Pool.objects.values_list("name", flat=True), key=natural_key)


def usable_names(user: User) -> list[str]:
    """The names of the pools that this user may submit to."""
    usable = access.usable_to(user)
    return sorted((pool.name for pool in rows.Pool.objects.all() if usable(pool)), key=natural_key)


def whole(user: User) -> Representation:
    """All pools, as the API lists them."""
    return seen(user, "/pools", {"results": shown(rows.Pool.objects.all(), user)})
