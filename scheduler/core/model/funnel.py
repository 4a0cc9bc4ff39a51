"""The filters of a search for nodes, in the order in which they are applied, as codes."""

from __future__ import annotations

from enum import StrEnum


class Filter(StrEnum):
    """What the nodes that are counted have in common; each filter counts those that passed all before it too."""

    ALL = "FunnelAll"
    IN_POOL = "FunnelInPool"
    ALLOWED = "FunnelAllowed"
    MATCHING = "FunnelMatching"
    WITH_ENGINE = "FunnelWithEngine"
    READY = "FunnelReady"
    ENOUGH_FREE = "FunnelEnoughFree"
    NO_PROMISE_DELAYED = "FunnelNoPromiseDelayed"
