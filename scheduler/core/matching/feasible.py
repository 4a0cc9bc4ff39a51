"""Whether a stage could ever run on the existing nodes, whatever is in use and whichever nodes are down right now."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.model.clauses import spoken
from scheduler.core.model.types import Node, Reason, Snapshot, Stage
from scheduler.core.resources.match import candidate, has_mounts, is_avoided, is_wanted
from scheduler.core.world.request_class import demand, kept_out


def never_fits(stage: Stage, snapshot: Snapshot) -> Reason | None:
    """Return why the stage could never run with the devices of its pool, or ``None`` if it could.

    Used at submission, so that no stage waits for what does not exist.
    """
    inside = [node for node in snapshot.nodes if stage.pool in node.pools]
    able = _able(stage, inside)
    if able < stage.nodes and (reason := kept_out(stage, able, lambda other: _able(other, inside))):
        return reason
    asks = spoken(asks=demand(stage.alternatives, stage.nodes))
    if able == 0:
        return Reason("NoMatchingDevice", {"pool": stage.pool, **asks})
    if able < stage.nodes:
        return Reason("ExceedsClusterMax", {"pool": stage.pool, **asks, "nodes": able, "needed": stage.nodes})
    return None


def _able(stage: Stage, inside: Iterable[Node]) -> int:
    """Return on how many of the nodes that it may use its best alternative matches."""
    allowed = [
        node
        for node in inside
        if (not stage.pinned or node.id in stage.pinned)
        and (not stage.site or node.labels.get("site") == stage.site)
        and not is_avoided(node, stage.avoid)
        and is_wanted(node, stage.only)
        and has_mounts(node, stage.mounts)
    ]
    return max(
        (
            sum(candidate(feasible, node, healthy=False) is not None for node in allowed)
            for feasible in stage.alternatives
        ),
        default=0,
    )
