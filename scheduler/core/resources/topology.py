"""Where nodes stand to each other: groups that share a link domain.

The domain of a node is the value of the first of these labels that it has; nodes without any form one domain of their
own each, because nothing is known about them.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    Of several domains that would do, the one with the fastest links is taken, of those that are alike the one whose
    measured links are the best, and then the smallest, so that large ones stay whole. A gang is as fast as its slowest
    link, so a node whose measured link is less than half as fast as usual is left out where another can take its place.
    """
    if len(ranked) < count:
        return None
    if count == 1:
        return [ranked[0]]
    usual = _usual(ranked)
    domains: dict[str, list[tuple[Node, T]]] = {}
    for node, rest in ranked:
        domains.setdefault(domain(node, within), []).append((node, rest))
    enough = [_without_slow(members, count, usual) for members in domains.values() if len(members) >= count]
    if enough:
        return min(
            enough,
            key=lambda members: (
                -_slowest(members[:count]),
                -_measured(members[:count], usual),
                len(members),
                members[0][0].name,
            ),
        )[:count]
    # Across domains, few large pieces are better than many small ones, and of those the ones that are linked best.
    pieces = sorted(domains.values(), key=lambda m: (-len(m), m[0][0].name))
    first, rest_ = pieces[0], pieces[1:]
    if usual:
        rest_.sort(key=lambda m: (-_between(first, m, usual), -len(m), m[0][0].name))
    chosen = [one for members in (first, *rest_) for one in members]
    return chosen[:count]


def links_among(nodes: Sequence[Node]) -> dict[tuple[str, str], float]:
    """The measured bandwidth of each pair of these nodes, in Gbit/s; of both directions the slower one. Pairs that were
    not measured are absent."""
    ids = {node.id for node in nodes}
    found: dict[tuple[str, str], float] = {}
    for node in nodes:
        for other, gbps in node.links.items():
            if other in ids and other != node.id:
                pair = (min(node.id, other), max(node.id, other))
                found[pair] = min(found.get(pair, gbps), gbps)
    return found


def _usual(ranked: Sequence[tuple[Node, T]]) -> float:
    """The median of the measured links among these nodes; 0 where none was measured."""
    if not any(node.links for node, _ in ranked):
        return 0.0
    found = sorted(links_among([node for node, _ in ranked]).values())
    return found[len(found) // 2] if found else 0.0


def _measured(members: Sequence[tuple[Node, T]], usual: float) -> float:
    """The slowest measured link among members; what is usual where none was measured."""
    return min(links_among([node for node, _ in members]).values(), default=usual) if usual else 0.0


def _between(some: Sequence[tuple[Node, T]], others: Sequence[tuple[Node, T]], usual: float) -> float:
    """The slowest measured link from one piece to another; what is usual where none was measured."""
    ids = {node.id for node, _ in some}
    found = links_among([node for node, _ in (*some, *others)])
    return min((gbps for pair, gbps in found.items() if (pair[0] in ids) != (pair[1] in ids)), default=usual)


def _without_slow(members: list[tuple[Node, T]], count: int, usual: float) -> list[tuple[Node, T]]:
    """The members with those last, of the first ``count``, whose measured link to a better one is less than half as
    fast as usual, as far as others can take their places."""
    if not usual or len(members) == count:
        return members
    slow: dict[str, set[str]] = {}
    for (one, other), gbps in links_among([node for node, _ in members]).items():
        if gbps < usual / 2:
            slow.setdefault(one, set()).add(other)
            slow.setdefault(other, set()).add(one)
    chosen: list[tuple[Node, T]] = []
    left: list[tuple[Node, T]] = []
    ids: set[str] = set()
    for at, member in enumerate(members):
        if len(chosen) == count:
            left += members[at:]
            break
        node = member[0].id
        if ids.isdisjoint(slow.get(node, ())):
            chosen.append(member)
            ids.add(node)
        else:
            left.append(member)
    return chosen + left


def _slowest(members: Sequence[tuple[Node, T]]) -> float:
    return min(bandwidth(node) for node, _ in members)
