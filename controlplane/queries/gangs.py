"""The largest gang that would fit now: whole free devices on nodes of one pool, as many on each node."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
from django.db.models import Q
from django.utils import timezone

from controlplane.fleet.models import Device
from controlplane.natural import natural_key
from scheduler.core.model.lifecycle import USABLE_HEALTH, NodeState


class FreeNodes(msgspec.Struct, frozen=True):
    """So many nodes have so many whole devices free."""

    nodes: int
    free: int


class Gang(msgspec.Struct, frozen=True):
    """The largest gang of one model that fits now: ``nodes`` nodes of ``pool`` with ``each`` free devices each.

    Quotas, reservations and links are not looked at. ``by_node`` are the free nodes of that pool, the freest first;
    ``size`` is how many devices its largest node has. Of CPUs, ``each`` and ``free`` are whole cores.
    """

    kind: str
    model: str
    pool: str
    nodes: int
    each: int
    size: int
    by_node: list[FreeNodes]


def gangs() -> list[Gang]:
    """The largest gang of each model in the pool where it is largest; accelerators first. ``nodes`` is 0 if none is
    free."""
    devices = Device.objects.filter(present=True, node__pools__isnull=False).order_by()
    fenced = Q(fenced_until__gt=timezone.now())
    shown = ("kind", "model", "node__pools__name", "node_id", "node__state", "health", "claimed_milli")
    sizes: dict[tuple[str, str], dict[tuple[str, object], int]] = defaultdict(lambda: defaultdict(int))
    free: dict[tuple[str, str], dict[tuple[str, object], int]] = defaultdict(lambda: defaultdict(int))
    out = set(devices.filter(fenced).values_list("id", flat=True))
    for device, capacity, kind, model, pool, node, state, health, claimed in devices.values_list(
        "id", "capacity_milli", *shown
    ):
        # Of a CPU, cores are free; of any other device the whole.
        unit = capacity // 1000 if kind == "cpu" else 1
        sizes[kind, model][pool, node] += unit
        if state == NodeState.READY and health in USABLE_HEALTH and device not in out:
            free[kind, model][pool, node] += (capacity - claimed) // 1000 if kind == "cpu" else int(claimed == 0)
    order = sorted(sizes, key=lambda key: (key[0] == "cpu", -sum(sizes[key].values()), natural_key(key[1])))
    return [_largest(*key, sizes[key], free[key]) for key in order]


def _largest(kind: str, model: str, sizes: dict[tuple[str, object], int], free: dict[tuple[str, object], int]) -> Gang:
    by_pool: dict[str, Counter[int]] = {pool: Counter() for pool, _node in sizes}
    for (pool, _node), count in free.items():
        if count:
            by_pool[pool][count] += 1
    best = max(by_pool, key=lambda pool: (_product(_gang_of(by_pool[pool])), natural_key(pool)))
    nodes, each = _gang_of(by_pool[best])
    return Gang(
        kind=kind,
        model=model,
        pool=best,
        nodes=nodes,
        each=each,
        size=max(size for (pool, _node), size in sizes.items() if pool == best),
        by_node=[FreeNodes(by_pool[best][count], count) for count in sorted(by_pool[best], reverse=True)],
    )


def _product(gang: tuple[int, int]) -> tuple[int, int]:
    return gang[0] * gang[1], gang[1]


def _gang_of(free: Counter[int]) -> tuple[int, int]:
    """How many nodes with how many devices each are most devices together; of equal ones, that of fewer nodes."""
    found = [(sum(nodes for count, nodes in free.items() if count >= each), each) for each in free]
    return max(found, key=_product, default=(0, 0))
