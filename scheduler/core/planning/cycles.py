"""Cycles of preemptions: A was stopped for B, and B, directly or through others, was stopped for A."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def in_circles(stops: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the stages that are part of a cycle of ``stops``, pairs of the stopped stage and the stage it was stopped
    for.

    These are the strongly connected components with more than one member (Tarjan 1972), computed without recursion.
    """
    after: dict[str, list[str]] = defaultdict(list)
    for victim, winner in stops:
        if victim != winner:
            after[victim].append(winner)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: set[str] = set()
    for root in sorted(after):
        if root in index:
            continue
        work = [(root, iter(sorted(after[root])))]
        index[root] = low[root] = len(index)
        path.append(root)
        on_path.add(root)
        while work:
            name, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    circle = path[path.index(name) :]
                    del path[path.index(name) :]
                    on_path.difference_update(circle)
                    found.update(circle if len(circle) > 1 else ())
            elif following not in index:
                index[following] = low[following] = len(index)
                path.append(following)
                on_path.add(following)
                work.append((following, iter(sorted(after.get(following, ())))))
            elif following in on_path:
                low[name] = min(low[name], index[following])
    return frozenset(found)
