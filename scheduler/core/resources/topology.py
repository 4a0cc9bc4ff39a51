"""Where nodes stand to each other: groups that share a link domain.

The domain of a node is the value of the first of these labels that it has; nodes without any form one domain of their
own each, because nothing is known about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from scheduler.core.model.types import Node

LABELS: Final = ("superpod", "nvlink-domain", "switch", "rack", "zone")
BANDWIDTH: Final = "link-gbps"
# More than this is no bandwidth of a node but a slip of the pen.
MOST_GBPS: Final = 100_000.0
T = TypeVar("T")


def domain(node: Node, within: str = "") -> str:
    """The name of the node's link domain; of the sort ``within`` where that is given."""
    labels = (within,) if within else LABELS
    return next((f"{label}={node.labels[label]}" for label in labels if label in node.labels), f"node={node.name}")


def declared(node: Node) -> float:
    """How much the node's link to its domain carries as its label says, in Gbit/s; 0 where that says no number."""
    try:
        gbps = float(node.labels.get(BANDWIDTH, 0.0))
    except ValueError:
        return 0.0
    return gbps if 0.0 < gbps < MOST_GBPS else 0.0


def bandwidth(node: Node) -> float:
    """How much the node's link to its domain carries, in Gbit/s: as declared, else as inputs came to it; 0 where
    neither is known."""
    return declared(node) or node.fetch_gbps or 0.0


def gather(ranked: Sequence[tuple[Node, T]], count: int, within: str = "") -> list[tuple[Node, T]] | None:
    """``count`` of the nodes, best first as given, from one domain if any has so many; ``None`` if there are too few.

    Of several domains that would do, the one with the fastest links is taken, and of those that are alike the smallest,
    so that large ones stay whole. A gang is as fast as its slowest link.
    """
    if len(ranked) < count:
        return None
    if count == 1:
        return [ranked[0]]
    domains: dict[str, list[tuple[Node, T]]] = {}
    for node, rest in ranked:
        domains.setdefault(domain(node, within), []).append((node, rest))
    enough = [members for members in domains.values() if len(members) >= count]
    if enough:
        return min(enough, key=lambda members: (-_slowest(members[:count]), len(members), members[0][0].name))[:count]
    # Across domains, few large pieces are better than many small ones.
    pieces: Iterable[list[tuple[Node, T]]] = sorted(domains.values(), key=lambda m: (-len(m), m[0][0].name))
    return [one for members in pieces for one in members][:count]


def _slowest(members: Sequence[tuple[Node, T]]) -> float:
    return min(bandwidth(node) for node, _ in members)
