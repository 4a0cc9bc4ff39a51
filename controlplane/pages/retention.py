"""For how long ended records are kept, which would be removed next, and the choices of projects."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import page, reader
from controlplane.queries import retention
from controlplane.queries.reading import redacted
from controlplane.retention.kinds import NAMED
from controlplane.retention.models import Removal

MOST_REMOVALS: Final = 20
GIB: Final = 2**30


@login_required
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    found = redacted(user, retention.overview(user))
    may_all, sees_all = may(user, Permit.CHANGE_RETENTION), may(user, Permit.SEE_RETENTION)
    led = set(permissions.led(user).values_list("name", flat=True))
    usual = {each["kind"]: each["days"] for each in found["kinds"]}
    return page(
        request,
        "retention.html",
        {
            "kinds": found["kinds"],
            "projects": [
                {
                    **one,
                    "rules": [_rule(rule, usual[rule["kind"]], may_all) for rule in one["rules"]],
                    "log_bytes": next(rule["log_bytes"] for rule in one["rules"] if rule["kind"] == "logs"),
                    "own_log_gib": (one["own_log_bytes"] or 0) / GIB or None,
                    "may_change": may_all or one["project"] in led,
                }
                for one in found["projects"]
            ],
            "titles": [NAMED[rule["kind"]].title for rule in found["projects"][0]["rules"]]
            if found["projects"]
            else [],
            "most_gib": None if may_all else settings.LOG_BYTES_PER_PROJECT / GIB or None,
            "usual_gib": settings.LOG_BYTES_PER_PROJECT / GIB or None,
            "may_all": may_all,
            "sees_all": sees_all,
            "removals": [_removal(row) for row in Removal.objects.select_related("project")[:MOST_REMOVALS]]
            if sees_all
            else [],
        },
        place="retention",
        crumbs=[(_("Retention"), "")],
    )


def _rule(rule: dict[str, Any], usual: int | None, may_all: bool) -> dict[str, Any]:
    """The rule with what the form offers: a lead may shorten what the cluster keeps, others may also lengthen it."""
    return {**rule, "title": NAMED[rule["kind"]].title, "usual": usual, "most": None if may_all else usual}


def _removal(row: Removal) -> dict[str, Any]:
    went = [{**told, "title": NAMED[kind].title if kind in NAMED else kind} for kind, told in row.went.items()]
    return {"at": row.at, "project": row.project.name if row.project else "", "went": went}
