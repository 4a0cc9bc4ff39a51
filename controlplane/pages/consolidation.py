"""The stages whose move would make room for a stage that fits nowhere, and a button to do it."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.accounts.permissions import Permit, may
from controlplane.pages.decisions import stage_of
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import consolidation
from controlplane.queries.reading import redacted


@login_required
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    if not may(user, Permit.SEE_DECISIONS):
        raise PermissionDenied(_("you may not see this"))
    body = redacted(user, consolidation.advised(user))
    advice = [
        {
            **one,
            "who": stage_of(one["stage"]),
            "moves": [{**move, "who": stage_of(move["stage"])} for move in one["moves"]],
        }
        for one in body["advice"]
    ]
    return page(
        request,
        "consolidation.html",
        {"found": body, "advice": advice},
        place="decisions",
        crumbs=[(title_of("decisions"), "/decisions"), (_("What could move"), "")],
    )
