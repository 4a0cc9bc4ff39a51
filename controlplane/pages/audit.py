"""The audit log: who changed what, how, with the values before and after."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts.models import AuditEntry
from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import page, reader
from controlplane.queries import audit
from controlplane.queries.reading import cursor_of

FILTERS = ("actor", "via", "action", "kind", "object", "since", "until", "cursor")
PER_PAGE = 50
# Pages of the objects in the log; a job is linked by its number.
_PAGES = {
    "node": "/nodes/{name}",
    "profile": "/profiles/{name}",
    "job": "/jobs/{id}",
    "simulation": "/simulations/{id}",
}


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as a row of the list: one line for each changed value, and a link to the object."""
    before, after = entry["before"], entry["after"]
    changes = [
        {"name": name, "before": _text(before, name), "after": _text(after, name)}
        for name in dict.fromkeys([*before, *after])
    ]
    href = _PAGES.get(entry["kind"], "").format(name=quote(entry["name"]), id=quote(entry["object_id"]))
    return {**entry, "changes": changes, "href": href, "way": AuditEntry.Via(entry["via"]).label}


def _text(values: Mapping[str, Any], name: str) -> str:
    """A value as one line; empty if this side has none."""
    if name not in values or values[name] in (None, "", [], {}):
        return ""
    value = values[name]
    return value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _asked(request: HttpRequest) -> dict[str, str]:
    """The filters in the query string. A local time from a form has no zone: it is in the user's zone."""
    asked = {key: request.GET[key].strip() for key in FILTERS if request.GET.get(key, "").strip()}
    for key in ("since", "until"):
        try:
            at = datetime.fromisoformat(asked.get(key, "2000-01-01T00:00Z"))
            asked |= {key: timezone.make_aware(at).isoformat()} if timezone.is_naive(at) else {}
        except (ValueError, OverflowError):
            del asked[key]
    if asked.get("via", "api") not in AuditEntry.Via.values:
        del asked["via"]
    return asked


@login_required
def show(request: HttpRequest) -> HttpResponse:
    asked = _asked(request)
    if not may(reader(request), Permit.SEE_AUDIT):
        raise PermissionDenied(_("you may not see this"))
    answer = audit.page(reader(request), {**asked, "limit": str(PER_PAGE)})
    return page(
        request,
        "audit.html",
        {
            "entries": [_row(one) for one in answer.body["results"]],
            "asked": asked,
            "filters": {key: value for key, value in asked.items() if key != "cursor"},
            "ways": AuditEntry.Via.choices,
            "zone": timezone.get_current_timezone_name(),
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
        },
        place="audit",
        topics=[answer],
        every_s=4,
        crumbs=[(_("Audit log"), "")],
    )
