"""Pools: named sets of nodes with their own rules."""

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
    up what it would have done. ``promises`` tells how many starts came by the end of the range first announced. A
    ``restricted`` pool is for some projects and groups only; ``usable`` tells whether you may submit to it."""

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


def shown(pools: Iterable[rows.Pool], user: User) -> list[Pool]:
    """These pools by name, with how many nodes each has that are not lost; everybody sees them."""
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
            default_limit_s=pool.default_limit_s,
            max_limit_s=pool.max_limit_s,
            min_runtime_s=pool.min_runtime_s,
            on_node_lost=pool.on_node_lost,
            stopped_by=pool.stopped_by,
            repartition=pool.repartition,
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
    """The names of all pools, in the order in which people expect them."""
    return sorted(rows.Pool.objects.values_list("name", flat=True), key=natural_key)


def usable_names(user: User) -> list[str]:
    """The names of the pools that this user may submit to."""
    usable = access.usable_to(user)
    return sorted((pool.name for pool in rows.Pool.objects.all() if usable(pool)), key=natural_key)


def whole(user: User) -> Representation:
    """All pools, as the API lists them."""
    return seen(user, "/pools", {"results": shown(rows.Pool.objects.all(), user)})
