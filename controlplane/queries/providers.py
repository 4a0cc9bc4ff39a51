"""Providers of nodes, what is known of them, and their pilots."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.providers import models as rows
from controlplane.providers import service
from controlplane.queries.clauses import Clause, clauses

MOST_PILOTS: Final = 500


class NodeProvider(msgspec.Struct, frozen=True):
    """A foreign engine that runs this cluster's agents as nodes of ``pool`` while there is work for them.

    ``condition`` is why it can do nothing now, since ``condition_at``; empty if all is well. After ``failures`` in a
    row the engine is asked again at ``retry_at``. ``pilots`` counts those that are not gone by their state, and
    ``used_node_hours`` the hours of nodes of the last 30 days, those included that its pilots may still take.
    """

    name: str
    kind: str
    pool: str
    settings: dict[str, Any]
    shapes: list[dict[str, Any]]
    min_nodes: int
    max_nodes: int
    hours: float
    budget_node_hours: float | None
    used_node_hours: float
    idle_s: int
    wait_s: int
    enabled: bool
    condition: str
    condition_said: list[Clause]
    condition_at: datetime | None
    failures: int
    retry_at: datetime | None
    looked_at: datetime | None
    pilots: dict[str, int]


class Pilot(msgspec.Struct, frozen=True):
    """One allocation of a foreign engine that runs, or ran, an agent of this cluster.

    ``label`` is how the engine's entry is found again, and ``handle`` the engine's own name of it. ``why`` is a code
    that tells why it is leaving or gone.
    """

    id: uuid.UUID
    provider: str
    shape: str
    hours: float
    label: str
    handle: str
    state: str
    why: str
    node: str | None
    created_at: datetime
    up_at: datetime | None
    joined_at: datetime | None
    ends_at: datetime | None
    leaving_at: datetime | None
    gone_at: datetime | None


def shown(providers: Iterable[rows.NodeProvider], user: User) -> list[NodeProvider]:
    """These providers, and what is known of them."""
    providers = list(providers)
    now = timezone.now()
    counts: dict[int, Counter[str]] = {row.pk: Counter() for row in providers}
    live = rows.Pilot.objects.filter(provider__in=providers).exclude(state=rows.Pilot.PilotState.GONE)
    for number, state in live.values_list("provider", "state"):
        counts[number][state] += 1
    return [
        NodeProvider(
            name=row.name,
            kind=row.kind,
            pool=row.pool.name,
            settings=row.settings,
            shapes=row.shapes,
            min_nodes=row.min_nodes,
            max_nodes=row.max_nodes,
            hours=row.hours,
            budget_node_hours=row.budget_node_hours,
            used_node_hours=round(service.node_hours(row, now), 3),
            idle_s=row.idle_s,
            wait_s=row.wait_s,
            enabled=row.enabled,
            condition=row.condition,
            condition_said=clauses(row.said),
            condition_at=row.condition_at,
            failures=row.failures,
            retry_at=row.retry_at,
            looked_at=row.looked_at,
            pilots=dict(sorted(counts[row.pk].items())),
        )
        for row in providers
    ]


def pilots_of(provider: rows.NodeProvider) -> QuerySet[rows.Pilot]:
    """The pilots of a provider, newest first, with their nodes."""
    return provider.pilots.select_related("provider", "node").order_by("-created_at", "label")


def pilots_shown(pilots: Iterable[rows.Pilot], user: User) -> list[Pilot]:
    """These pilots."""
    return [
        Pilot(
            id=row.pk,
            provider=row.provider.name,
            shape=row.shape,
            hours=row.hours,
            label=row.label,
            handle=row.handle,
            state=row.state,
            why=row.why,
            node=row.node.name if row.node else None,
            created_at=row.created_at,
            up_at=row.up_at,
            joined_at=row.joined_at,
            ends_at=row.ends_at,
            leaving_at=row.leaving_at,
            gone_at=row.gone_at,
        )
        for row in pilots
    ]
