"""Providers of nodes: their condition, their limits and their pilots, for operators."""

from __future__ import annotations

from itertools import islice
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import page, reader
from controlplane.providers.models import NodeProvider, Pilot
from controlplane.queries import providers
from controlplane.queries.reading import redacted, seen

# Of each provider, the pilots that are not gone, and then the newest of the others.
MOST_PILOTS = 100
MOST_GONE = 10


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    if not may(user, Permit.SEE_PROVIDERS):
        raise PermissionDenied
    rows = list(NodeProvider.objects.select_related("pool"))
    found = seen(user, "/providers", {"results": providers.shown(rows, user)})
    pilots = [[_told(one) for one in redacted(user, providers.pilots_shown(_newest(row), user))] for row in rows]
    return page(
        request,
        "providers.html",
        {
            "providers": list(zip(found.body["results"], pilots, strict=True)),
            "may_add": may(user, Permit.ADD_PROVIDERS),
        },
        place="providers",
        topics=[found],
        every_s=4,
        crumbs=[(_("Nodes"), "/nodes"), (_("Providers of nodes"), "")],
    )


def _told(one: dict[str, Any]) -> dict[str, Any]:
    """A pilot, with its state and why it goes in words."""
    why = Pilot.PilotEnd(one["why"]).label if one["why"] else ""
    return {**one, "state_text": Pilot.PilotState(one["state"]).label, "why_text": why}


def _newest(row: NodeProvider) -> list[Any]:
    every = providers.pilots_of(row)
    live = islice(every.exclude(state=Pilot.PilotState.GONE), MOST_PILOTS)
    return [*live, *every.filter(state=Pilot.PilotState.GONE)[:MOST_GONE]]
