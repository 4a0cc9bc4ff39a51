"""Gathers what ``/metrics`` says of providers of nodes: two statements."""

from __future__ import annotations

from django.db.models import Count

from controlplane.observability.gathering import Gathered
from controlplane.providers.models import NodeProvider, Pilot


def gather(into: Gathered) -> None:
    """Gather everything of providers and their pilots."""
    live = Pilot.objects.exclude(state=Pilot.PilotState.GONE).order_by()
    counts = {
        (provider, state): count
        for provider, state, count in live.values_list("provider__name", "state").annotate(Count("id"))
    }
    for name, failures in NodeProvider.objects.order_by("pk").values_list("name", "failures"):
        into.set("switchyard_provider_failures", failures, name)
        for state in Pilot.PilotState:
            if state != Pilot.PilotState.GONE:
                into.set("switchyard_provider_pilots", counts.get((name, state), 0), name, state)
