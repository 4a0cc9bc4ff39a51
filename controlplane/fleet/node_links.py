"""Measured bandwidths between pairs of nodes, from the inputs that nodes fetch from each other.

Nothing is sent for that: an agent tells of each larger transfer from whom it came and how long it took. Only in pools
that ask for it (``Pool.measure_links``) idle nodes measure further pairs, a few at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from agents.protocol import Fetched
from controlplane import changes
from controlplane.fleet import loads
from controlplane.fleet.models import Node, NodeLink

# So many newest pairs are kept of each node that fetches.
MOST: Final = 64
# A pair is measured again after this, and one node every so often at most.
AGAIN: Final = timedelta(days=1)
EVERY: Final = timedelta(minutes=10)
# So many measurements are begun at a time; an order is dropped that was not answered for so long.
AT_ONCE: Final = 8
ANSWERED_WITHIN: Final = timedelta(minutes=2)
IDLE_LOAD: Final = 0.25

# A few idle nodes of such pools, those that measured least lately first, each with an idle peer of its pool that it has
# not measured lately. Who measures or is measured now is left alone.
_PAIRS = """
WITH busy AS (SELECT id, measures_from_id FROM fleet_node WHERE measures_at > %(asked_since)s)
SELECT n.id, m.id
FROM (SELECT n.id FROM fleet_node n
      WHERE n.state = 'READY' AND n.load <= %(idle)s AND (n.measures_at IS NULL OR n.measures_at < %(node_before)s)
        AND EXISTS (SELECT 1 FROM fleet_node_pools a JOIN pools_pool p ON p.id = a.pool_id
                    WHERE a.node_id = n.id AND p.measure_links)
        AND NOT EXISTS (SELECT 1 FROM busy WHERE busy.measures_from_id = n.id)
      ORDER BY n.measures_at NULLS FIRST LIMIT %(most)s) n
CROSS JOIN LATERAL (
    SELECT m.id FROM fleet_node m JOIN fleet_kept k ON k.node_id = m.id AND k.url <> ''
    WHERE m.id <> n.id AND m.state = 'READY' AND m.load <= %(idle)s
      AND EXISTS (SELECT 1 FROM fleet_node_pools a JOIN fleet_node_pools b ON b.pool_id = a.pool_id
                  JOIN pools_pool p ON p.id = a.pool_id AND p.measure_links
                  WHERE a.node_id = n.id AND b.node_id = m.id)
      AND NOT EXISTS (SELECT 1 FROM busy WHERE m.id IN (busy.id, busy.measures_from_id))
      AND NOT EXISTS (SELECT 1 FROM fleet_nodelink l
                      WHERE l.target_id = n.id AND l.source_id = m.id AND l.at > %(pair_before)s)
    ORDER BY random() LIMIT 1) m
"""


def assign(now: datetime) -> int:
    """Ask a few idle nodes to measure the bandwidth from others; return how many."""
    asked: dict[str, Any] = {
        "idle": IDLE_LOAD,
        "most": 2 * AT_ONCE,
        "node_before": now - EVERY,
        "pair_before": now - AGAIN,
        "asked_since": now - ANSWERED_WITHIN,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_PAIRS, asked)
        busy: set[uuid.UUID] = set()
        chosen: dict[uuid.UUID, uuid.UUID] = {}
        for node, peer in cursor.fetchall():
            if len(chosen) < AT_ONCE and not {node, peer} & busy:
                chosen[node] = peer
                busy |= {node, peer}
        list(Node.objects.filter(id__in=busy).order_by("id").select_for_update(no_key=True).values_list("id"))
        for node, peer in chosen.items():
            Node.objects.filter(id=node).update(measures_from=peer, measures_at=now)
        transaction.on_commit(lambda: changes.nudge([str(node) for node in chosen]))
    return len(chosen)


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
        if node.measures_from_id in {peer.id for peer in found}:
            Node.objects.filter(id=node.id, measures_from=node.measures_from_id).update(measures_from=None)
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
