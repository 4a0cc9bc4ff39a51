"""The filters of a search for nodes, in the order in which they are applied, as codes."""

from __future__ import annotations

from enum import StrEnum


class Filter(StrEnum):
    """A filter of the search. The nodes that are counted passed it and all filters before it."""

    ALL = "FunnelAll"
    IN_POOL = "FunnelInPool"
    ALLOWED = "FunnelAllowed"
    MATCHING = "FunnelMatching"
    WITH_ENGINE = "FunnelWithEngine"
    READY = "FunnelReady"
    ENOUGH_FREE = "FunnelEnoughFree"
    NO_PROMISE_DELAYED = "FunnelNoPromiseDelayed"
