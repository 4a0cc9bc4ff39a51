"""Nodes that providers are bringing, for telling a stage that waits for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.providers import shapes
from controlplane.providers.models import Pilot
from controlplane.providers.service import lead_s
from scheduler.core.model.times import clock
from scheduler.core.model.types import Alternative, Node, Reason, Stage
from scheduler.core.resources.match import candidate

# Reasons for waiting that more nodes would end.
LACKS: Final = frozenset({
    "NoMatchingDevice", "ExceedsClusterMax", "NodesUnavailable", "MaintenanceWindow", "PlannedDeviceBusy",
    "PlannedLater", "Fragmented", "CapacityInsufficient", "ReservedForHigher", "PriorityBehind",
})  # fmt: skip
BRINGS: Final = "ProviderBrings"
# They are read again after so many seconds.
EVERY_S: Final = 2.0
_COMING: Final = (Pilot.PilotState.ASKED, Pilot.PilotState.QUEUED, Pilot.PilotState.UP)


@dataclass(frozen=True, slots=True)
class ComingNode:
    """A kind of node that is asked for, or has not joined yet; ``reason`` tells its provider and since when."""

    pool: str
    machine: Node
    lasts_s: float
    reason: Reason


class ComingNodes:
    """The nodes that are coming, as of a moment ago."""

    def __init__(self) -> None:
        self._nodes: Sequence[ComingNode] = ()
        self._read_at = float("-inf")
        # By pool, ways and time limit: alike stages share the answer.
        self._known: dict[tuple[str, tuple[Alternative, ...], float], Reason | None] = {}

    def refresh(self, now: float) -> None:
        """Read them, if that was not done of late; ``now`` is in seconds since the epoch."""
        if now - self._read_at < EVERY_S:
            return
        self._read_at = now
        if (found := _read()) != self._nodes:
            self._nodes, self._known = found, {}

    def told(self, stage: Stage, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """Return the reasons of a waiting stage, with the provider first that is bringing a node on which it fits."""
        if not self._nodes or not reasons or reasons[0].code not in LACKS or stage.time_limit_s is None:
            return reasons
        key = (stage.pool, stage.alternatives, stage.time_limit_s)
        if key not in self._known:
            self._known[key] = self._for(stage.pool, stage.alternatives, stage.time_limit_s)
        reason = self._known[key]
        return reasons if reason is None else (reason, *reasons)

    def _for(self, pool: str, ways: Sequence[Alternative], limit_s: float) -> Reason | None:
        for node in self._nodes:
            is_apt = node.pool == pool and limit_s <= node.lasts_s
            if is_apt and any(candidate(way, node.machine, healthy=False) is not None for way in ways):
                return node.reason
        return None


def _read() -> tuple[ComingNode, ...]:
    """Return one for each provider and shape of which a node is coming, the oldest request first."""
    rows = Pilot.objects.filter(state__in=_COMING, joined_at=None).order_by("created_at")
    first: dict[tuple[str, str], ComingNode] = {}
    for name, pool, described, shape, hours, since in rows.values_list(
        "provider__name", "provider__pool__name", "provider__shapes", "shape", "hours", "created_at"
    ):
        asked: Mapping[str, object] | None = next((one for one in described if one.get("name") == shape), None)
        if asked is not None and (name, shape) not in first:
            at = since.timestamp()
            reason = Reason(BRINGS, {"provider": name, "time": clock(at), "at": at})
            lasts_s = hours * 3600 - lead_s(hours)
            first[name, shape] = ComingNode(pool, shapes.as_node(asked, pool), lasts_s, reason)
    return tuple(first.values())
