"""Tells what a cycle did without, and when that is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from django.db import DatabaseError

from controlplane.fleet import alarms
from scheduler.core.model.types import Snapshot
from scheduler.core.planning.aside import Aside

log = logging.getLogger(__name__)

# What stays wrong is counted once in so long, not with every cycle.
AGAIN_S: Final = 10.0
KINDS: Final = (alarms.NODE, alarms.STAGE, alarms.POOL, alarms.PROFILE, alarms.CYCLE)

Found = Mapping[str, Mapping[str, str]]


class Alarms:
    """Remembers what was told last. One per process."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[dict[str, str], float]] = {}

    def of(self, snapshot: Snapshot, rows: Found, plan: Aside) -> None:
        """Tells what a cycle set aside: rows that could not be used, and what could not be planned."""
        nodes = {node.id: node.name for node in snapshot.nodes} if plan.nodes else {}
        found = {kind: dict(told) for kind, told in rows.items()}
        found.setdefault(alarms.NODE, {}).update(
            {nodes.get(i, i): f"it cannot be planned: {plan.nodes[i]}" for i in plan.nodes}
        )
        found.setdefault(alarms.STAGE, {}).update(
            {plan.names[i]: f"it cannot be planned: {why}" for i, why in plan.stages.items()}
        )
        found.setdefault(alarms.POOL, {}).update({i: f"it cannot be planned: {why}" for i, why in plan.pools.items()})
        self.tell(found | {alarms.CYCLE: {}})

    def tell(self, found: Found) -> None:
        """Writes what is news among these kinds."""
        now = time.monotonic()
        for kind, told in found.items():
            before, at = self._told.get(kind, (None, 0.0))
            if told == before and (not told or now - at < AGAIN_S):
                continue
            try:
                alarms.raised(kind, told)
            except DatabaseError as error:
                log.warning("alarms of the kind %s could not be written: %s", kind, error)
                continue
            self._told[kind] = (dict(told), now)
