"""Operations: actions on many jobs that go on in the background, how far each is, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from controlplane.pages.jobs import FILTERS
from controlplane.pages.shell import page, reader
from controlplane.pages.simulations import LOOK
from controlplane.queries import operations
from controlplane.queries.reading import cursor_of, seen

PER_PAGE = 50


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    """An operation with the title of its action, and the list of the jobs that match its filter now, if it has one."""
    titles = {
        "cancel": _("Cancel"),
        "hold": _("Hold"),
        "release": _("Release"),
        "requeue": _("Requeue"),
        "change": _("Change"),
    }
    # Who reads this page may be somebody else than who asked.
    chosen = {name: one["user"] if (name, value) == ("user", "me") else value for name, value in one["filter"].items()}
    patch = ", ".join(f"{name}: {value}" for name, value in (one["patch"] or {}).items())
    return {
        **one,
        "look": LOOK[one["phase"]],
        "is_open": one["ended_at"] is None,
        "title": titles.get(one["action"], one["action"]),
        "patch_text": patch,
        "filter_text": " ".join(f"{name}={value}" for name, value in one["filter"].items()),
        "jobs": f"/jobs?{urlencode(chosen)}" if chosen.keys() <= set(FILTERS) else "",
        "left": max(0, one["matched"] - one["done"] - one["refused"]),
    }


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    asked = {"cursor": request.GET["cursor"]} if request.GET.get("cursor") else {}
    answer = operations.page(reader(request), {**asked, "limit": str(PER_PAGE)})
    return page(
        request,
        "operations.html",
        {
            "operations": [_shown(one) for one in answer.body["results"]],
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
        },
        place="operations",
        topics=[answer],
        every_s=2,
        crumbs=[(_("Operations"), "")],
    )


@login_required
@require_safe
def one(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    found = operations.shown([operations.found(user, number)])[0]
    answer = seen(user, f"/operations/{number}", found)
    return page(
        request,
        "operation.html",
        {"one": _shown(answer.body)},
        place="operations",
        topics=[answer],
        every_s=1,
        crumbs=[(_("Operations"), "/operations"), (str(number), "")],
    )
