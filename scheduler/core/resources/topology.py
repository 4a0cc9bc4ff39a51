"""Where nodes stand to each other: groups that share a link domain.

The domain of a node is the value of the first of these labels that it has; nodes without any form one domain of their
own each, because nothing is known about them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
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
    links = MeasuredLinks([node for node, _ in ranked])
    domains: dict[str, list[tuple[Node, T]]] = {}
    for node, rest in ranked:
        domains.setdefault(domain(node, within), []).append((node, rest))
    enough = [_without_slow(members, count, links) for members in domains.values() if len(members) >= count]
    if enough:
        return min(
            enough,
            key=lambda members: (
                -_slowest(members[:count]),
                -links.slowest({node.id for node, _ in members[:count]}),
                len(members),
                members[0][0].name,
            ),
        )[:count]
    # Across domains, few large pieces are better than many small ones, and of those the ones that are linked best.
    pieces = sorted(domains.values(), key=lambda m: (-len(m), m[0][0].name))
    first = {node.id for node, _ in pieces[0]}
    others = sorted(pieces[1:], key=lambda m: -links.between({node.id for node, _ in m}, first))
    return [one for members in (pieces[0], *others) for one in members][:count]


class MeasuredLinks:
    """The links that were measured among some nodes, of both directions the slower one; ``usual`` is their median in
    Gbit/s, 0 where none was measured. What was not measured is taken for usual."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._of: dict[str, dict[str, float]] = {}
        self.usual = 0.0
        if not any(node.links for node in nodes):
            return
        ids = {node.id for node in nodes}
        for node in nodes:
            for other, gbps in node.links.items():
                if other in ids and other != node.id:
                    least = min(gbps, self._of.get(node.id, {}).get(other, gbps))
                    self._of.setdefault(node.id, {})[other] = self._of.setdefault(other, {})[node.id] = least
        found = sorted(gbps for others in self._of.values() for gbps in others.values())
        self.usual = found[len(found) // 2] if found else 0.0

    def slowest(self, ids: Set[str]) -> float:
        """The slowest link among these nodes."""
        return self.between(ids, ids)

    def between(self, ids: Set[str], others: Set[str]) -> float:
        """The slowest link from one of these nodes to one of the others."""
        found = (gbps for one in ids for other, gbps in self._of.get(one, {}).items() if other in others)
        return min(found, default=self.usual)

    def is_slow(self, one: str, others: Set[str]) -> bool:
        """Whether a link from this node to one of the others is less than half as fast as usual."""
        return any(gbps < self.usual / 2 and other in others for other, gbps in self._of.get(one, {}).items())


def _without_slow(members: list[tuple[Node, T]], count: int, links: MeasuredLinks) -> list[tuple[Node, T]]:
    """The members with those last, of the first ``count``, that have a slow link to a better one, as far as others can
    take their places."""
    if not links.usual or len(members) == count:
        return members
    chosen: list[tuple[Node, T]] = []
    left: list[tuple[Node, T]] = []
    ids: set[str] = set()
    for at, member in enumerate(members):
        if len(chosen) == count:
            return [*chosen, *left, *members[at:]]
        if links.is_slow(member[0].id, ids):
            left.append(member)
        else:
            chosen.append(member)
            ids.add(member[0].id)
    return chosen + left


def _slowest(members: Sequence[tuple[Node, T]]) -> float:
    return min(bandwidth(node) for node, _ in members)
