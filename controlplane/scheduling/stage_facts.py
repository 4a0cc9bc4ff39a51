"""Caches the parts of a stage that seldom change: its request, and the service its ended attempts received."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from django.db import connection

from controlplane.jobs import demand
from controlplane.jobs.models import Stage
from controlplane.scheduling.attained_service import NOTHING, AttainedService, received
from scheduler.core.model.types import Alternative

# Without shared storage a stage goes where its own checkpoints and what the stages it needs have left lie, but for
# outputs by digest: those go from node to node.
_PINNED = """
SELECT s.id, array_agg(DISTINCT t.node_id::text)
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
     LEFT JOIN jobs_stage_needs n ON n.from_stage_id = s.id
     JOIN jobs_attempt a ON a.stage_id = s.id OR (a.stage_id = n.to_stage_id AND NOT EXISTS (
         SELECT 1 FROM jobs_output k JOIN fleet_kept h ON h.digests @> to_jsonb(k.digest) AND h.url <> ''
         WHERE k.stage_id = n.to_stage_id))
     JOIN jobs_part t ON t.attempt_id = a.id
WHERE {who} AND o.storage_path = ''
GROUP BY s.id
"""


class StageFacts:
    """Caches requests, which change only while a stage waits, and attained service, which grows when an attempt ends.

    One per store; ``PendingStages`` renews the requests.
    """

    def __init__(self) -> None:
        self.requests: dict[uuid.UUID, dict[str, Any]] = {}
        self._alternatives: dict[str, tuple[Alternative, ...]] = {}
        self._received: dict[uuid.UUID, tuple[int, AttainedService]] = {}

    def learn(self, ids: Iterable[uuid.UUID]) -> None:
        """Load the requests of stages that are not cached."""
        missing = [i for i in ids if i not in self.requests]
        if missing:
            self.requests.update(Stage.objects.filter(id__in=missing).values_list("id", "request"))

    def receive(self, ended: Mapping[uuid.UUID, int]) -> None:
        """Load the attained service of stages whose number of ended attempts (the value) has grown."""
        known = self._received
        missing = [i for i, count in ended.items() if count and known.get(i, (0, NOTHING))[0] != count]
        if missing:
            found = received(missing)
            known.update({i: (ended[i], found.get(i, NOTHING)) for i in missing})

    def had(self, stage: uuid.UUID) -> AttainedService:
        """Return the service that a stage attained in its ended attempts."""
        return self._received.get(stage, (0, NOTHING))[1]

    def ways(self, request: Mapping[str, Any]) -> tuple[Alternative, ...]:
        """Return the alternatives of a request. Equal requests share one tuple, by whose identity the engine groups."""
        ways = [(each["index"], each["asks"], each.get("image", "")) for each in request["alternatives"]]
        key = msgspec.json.encode([*ways, *demand.amounts_asked(request)]).decode()
        if key not in self._alternatives:
            self._alternatives[key] = demand.ways(request)
        return self._alternatives[key]

    def forget(self, *but: Collection[uuid.UUID]) -> None:
        """Drop all stages but these from the cache, once they are less than half of it."""
        if len(self.requests) <= 2 * sum(map(len, but)) + 1000:
            return
        kept = {i for some in but for i in some}
        self.requests = {i: request for i, request in self.requests.items() if i in kept}
        self._received = {i: had for i, had in self._received.items() if i in kept}
        self._alternatives.clear()


def pinned(who: str, *values: Any) -> dict[uuid.UUID, tuple[str, ...]]:
    """Return the nodes to which stages are bound by data on no shared storage. ``who`` is an SQL condition on ``s``."""
    with connection.cursor() as cursor:
        cursor.execute(_PINNED.format(who=who), values)
        return {i: tuple(nodes) for i, nodes in cursor.fetchall()}
