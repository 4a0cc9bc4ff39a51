"""How much of each quota its project has borrowed, and how much others have borrowed of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from controlplane.pools.models import Quota


def borrowed(quota: Quota, held: Mapping[int, float]) -> float:
    """Return what of the use is above nominal. ``held`` is what is in use of each quota, by number."""
    return 0.0 if quota.nominal is None else max(0.0, held[quota.pk] - quota.nominal)


def lent(quotas: Iterable[Quota], held: Mapping[int, float]) -> dict[int, dict[int, float]]:
    """Return how much of each of these quotas others of its cohort have borrowed: by its number, by theirs. What they
    have borrowed is divided among those who leave something unused, in proportion to that."""
    lent: dict[int, dict[int, float]] = defaultdict(dict)
    sorts: dict[tuple[object, ...], list[Quota]] = defaultdict(list)
    for quota in quotas:
        sorts[quota.cohort, quota.kind, quota.model.lower(), quota.normalised].append(quota)
    for members in sorts.values():
        taken = {quota.pk: amount for quota in members if (amount := borrowed(quota, held))}
        spare = {
            quota.pk: max(0.0, min(quota.nominal - held[quota.pk], quota.lending_limit or quota.nominal))
            for quota in members
            if quota.nominal is not None and quota.lending_limit != 0
        }
        total = sum(spare.values())
        if not total:
            continue
        share = min(1.0, sum(taken.values()) / total) / (sum(taken.values()) or 1.0)
        for pk, one in spare.items():
            lent[pk] = {who: one * share * amount for who, amount in taken.items() if one}
    return lent
