"""Where nodes stand to each other: groups that share a link domain.

The domain of a node is the value of the first of these labels that it has; nodes without any form one domain of their
own each, because nothing is known about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from scheduler.core.types import Node

LABELS: Final = ("superpod", "nvlink-domain", "switch", "rack", "zone")
T = TypeVar("T")


def domain(node: Node) -> str:
    """The name of the node's link domain."""
    return next((f"{label}={node.labels[label]}" for label in LABELS if label in node.labels), f"node={node.name}")


def gather(ranked: Sequence[tuple[Node, T]], count: int) -> list[tuple[Node, T]] | None:
    """``count`` of the nodes, best first as given, from one domain if any has so many; ``None`` if there are too few.

    Of several domains that would do, the smallest is taken, so that large ones stay whole.
    """
    if len(ranked) < count:
        return None
    if count == 1:
        return [ranked[0]]
    domains: dict[str, list[tuple[Node, T]]] = {}
    for node, rest in ranked:
        domains.setdefault(domain(node), []).append((node, rest))
    enough = [members for members in domains.values() if len(members) >= count]
    if enough:
        return min(enough, key=lambda members: (len(members), members[0][0].name))[:count]
    # Across domains, few large pieces are better than many small ones.
    pieces: Iterable[list[tuple[Node, T]]] = sorted(domains.values(), key=lambda m: (-len(m), m[0][0].name))
    return [one for members in pieces for one in members][:count]
