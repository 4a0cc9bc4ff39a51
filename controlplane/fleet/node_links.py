"""Measured bandwidths between pairs of nodes, from the inputs that nodes fetch from each other.

Nothing is sent for that: an agent tells of each larger transfer from whom it came and how long it took.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db import transaction
from django.utils import timezone

from agents.protocol import Fetched
from controlplane.fleet import loads
from controlplane.fleet.models import Node, NodeLink

# So many newest pairs are kept of each node that fetches.
MOST: Final = 64


def note(node: Node, fetched: Iterable[Fetched]) -> None:
    """Store what these transfers to a node tell of its links. Unknown names and implausible rates are ignored."""
    rates: dict[str, list[tuple[int, float]]] = {}
    for one in fetched:
        rate = loads.gbps(one)
        if one.peer and one.peer != node.name and 0 < rate <= loads.MOST_GBPS:
            rates.setdefault(one.peer, []).append((one.size_bytes, rate))
    peers = Node.objects.filter(name__in=list(rates)[:MOST]).only("id", "name")
    if not rates or not (found := list(peers)):
        return
    with transaction.atomic():
        # Nodes are locked in order of their ids, as everywhere: a new pair refers to both.
        ids = [node.id, *(peer.id for peer in found)]
        list(Node.objects.filter(id__in=ids).order_by("id").select_for_update(no_key=True).values_list("id"))
        known = {link.source_id: link for link in NodeLink.objects.filter(target=node, source__in=found)}
        for peer in found:
            _update(known.get(peer.id) or NodeLink(source=peer, target=node), rates[peer.name])
        newest = NodeLink.objects.filter(target=node).order_by("-at", "-id").values_list("id", flat=True)
        if old := list(newest[MOST:]):
            NodeLink.objects.filter(id__in=old).delete()


def _update(link: NodeLink, rates: Iterable[tuple[int, float]]) -> None:
    mean: float | None = link.mean_gbps
    for size_bytes, rate in rates:
        mean = loads.weighed(mean, size_bytes, rate)
    assert mean is not None, "there is a rate"
    link.mean_gbps, link.at = mean, timezone.now()
    link.gbps = loads.stepped(link.gbps, mean) or mean
    link.save()
