"""Raises alarms for rows that a scheduling cycle had to leave out, and clears them once they are usable again."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from django.db import DatabaseError

from controlplane.clauses import Told, of_engine
from controlplane.fleet import alarms
from scheduler.core.model.clauses import say
from scheduler.core.model.types import Snapshot
from scheduler.core.planning.aside import Aside

log = logging.getLogger(__name__)

# Seconds between two writes of an alarm that has not changed.
AGAIN_S: Final = 10.0
KINDS: Final = (alarms.NODE, alarms.STAGE, alarms.POOL, alarms.PROFILE, alarms.CYCLE)

Found = Mapping[str, Mapping[str, Told]]


class CycleAlarms:
    """Writes alarms only when they change. Keep one per process."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[dict[str, Told], float]] = {}

    def of(self, snapshot: Snapshot, rows: Found, plan: Aside) -> None:
        """Raise alarms for unusable rows and for nodes, stages and pools that could not be planned."""
        nodes = {node.id: node.name for node in snapshot.nodes} if plan.nodes else {}
        found = {kind: dict(told) for kind, told in rows.items()}
        for kind, faults in (
            (alarms.NODE, {nodes.get(i, i): said for i, said in plan.nodes.items()}),
            (alarms.STAGE, {plan.names[i]: said for i, said in plan.stages.items()}),
            (alarms.POOL, plan.pools),
        ):
            found.setdefault(kind, {}).update({name: of_engine(say(said), said) for name, said in faults.items()})
        self.tell(found | {alarms.CYCLE: {}})

    def tell(self, found: Found) -> None:
        """Write the alarms of these kinds that differ from those written last."""
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
