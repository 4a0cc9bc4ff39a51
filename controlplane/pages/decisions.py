"""The scheduler's decisions, cycle by cycle, and one decision with its whole plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.accounts.permissions import Permit, may
from controlplane.pages.profiles import laid_out
from controlplane.pages.shell import page, reader, title_of
from controlplane.pools.models import profile_names
from controlplane.queries import decisions
from controlplane.queries.reading import cursor_of, redacted

FILTERS = ("did", "job", "code", "cursor")
PER_PAGE = 50
NAMED = 3
# The page size of the API.
MOST_SHOWN = 500
_STAGE = re.compile(r"#([0-9]+)/(.+)")


def stage_of(label: Any) -> dict[str, Any]:
    """A stage's name for display, and its job if it may be seen: ``#12/train`` is ``#12 train``."""
    found = _STAGE.fullmatch(str(label))
    if found is None:
        return {"text": _("another project's stage"), "job": None}
    return {"text": f"#{found[1]} {found[2]}", "job": int(found[1])}


def _row(decision: Mapping[str, Any]) -> dict[str, Any]:
    """A decision as a row of the list: the first few names, and how many more."""

    def first_names(entries: list[Any]) -> dict[str, Any]:
        names = [stage_of(one["stage"] if isinstance(one, Mapping) else one) for one in entries]
        return {"names": names[:NAMED], "more": max(0, len(names) - NAMED)}

    head = decision["head"]
    return {
        **decision,
        "did_start": first_names(decision["started"]),
        "did_evict": first_names(decision["evicted"]),
        "did_skip": first_names(decision["skipped"]),
        "codes": list(decision["waits"].items()),
        "first": {**stage_of(head["stage"]), "code": head.get("code", "")} if head.get("stage") else None,
    }


@login_required
def show(request: HttpRequest) -> HttpResponse:
    asked = {key: request.GET[key] for key in FILTERS if request.GET.get(key)}
    if not re.fullmatch(r"[0-9]{1,18}", asked.get("job", "1")):
        del asked["job"]
    answer = decisions.page(reader(request), {**asked, "limit": str(PER_PAGE)})
    filters = {key: value for key, value in asked.items() if key != "cursor"}
    rows = [_row(one) for one in answer.body["results"]]
    return page(
        request,
        "decisions.html",
        {
            "decisions": rows,
            "asked": asked,
            "filters": filters,
            "views": [
                {"title": title, "query": query, "here": urlencode(filters) == query}
                for title, query in (
                    (_("All"), ""),
                    (_("Started"), "did=start"),
                    (_("Preempted"), "did=evict"),
                    (_("Only waited"), "did=wait"),
                )
            ],
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
            "shadowed": any(one["shadow"] for one in rows),
            "may_move": may(request.user, Permit.SEE_DECISIONS),  # type: ignore[arg-type]
        },
        place="decisions",
        topics=[answer],
        every_s=4,
        crumbs=[(title_of("decisions"), "")],
    )


@login_required
def one(request: HttpRequest, number: int) -> HttpResponse:
    chosen = {key: request.GET[key] for key in ("code", "after") if request.GET.get(key)}
    if not chosen.get("after", "0").isdigit():
        del chosen["after"]
    user, after = reader(request), int(chosen.get("after", "0")[:9])
    body = redacted(user, decisions.one(user, number, chosen.get("code", ""), after))
    other = request.GET.get("with", "")
    under = None
    known = profile_names()
    if other in known and body["recorded"]:
        under = _under(redacted(user, decisions.under(user, number, other)))
    decision = body["decision"]
    shadow = decision["shadow"]
    return page(
        request,
        "decision.html",
        {
            "body": body,
            "decision": _row(decision),
            "starts": [{**start, "who": stage_of(start["stage"])} for start in body["starts"]],
            "evicted": [
                {**each, "who": stage_of(each["stage"]), "whom": stage_of(each.get("for"))}
                for each in decision["evicted"]
            ],
            "skipped": [stage_of(each) for each in decision["skipped"]],
            "waits": [{**wait, "who": stage_of(wait["stage"])} for wait in body["waits"]],
            "wait_count": after + len(body["waits"]) + body["cut"],
            "chosen": chosen.get("code", ""),
            "next": after + len(body["waits"]) if body["cut"] else 0,
            "previous": str(max(0, after - MOST_SHOWN)) if after else "",
            "shadow": _under(shadow) if shadow else None,
            "under": under,
            "specs": [{"name": name, "text": laid_out(spec)} for name, spec in body["specs"].items()],
            "other": other,
            "profiles": known,
            "may_take": may(request.user, Permit.SEE_DECISIONS),  # type: ignore[arg-type]
        },
        place="decisions",
        crumbs=[(title_of("decisions"), "/decisions"), (str(number), "")],
    )


def _under(found: Mapping[str, Any]) -> dict[str, Any]:
    """The difference under another profile, group by group, each with its title."""
    groups = (
        ("only_active", _("started only as decided")),
        ("only_other", _("would start only under the other")),
        ("elsewhere", _("would start on other devices")),
        ("spared", _("would not be stopped")),
        ("evicted", _("would be stopped")),
    )
    difference = found["difference"]
    return {
        "profile": found["profile"],
        "differs": found["differs"],
        "earlier_s": difference.get("earlier_s"),
        "groups": [
            {"title": title, "stages": [{**each, "who": stage_of(each["stage"])} for each in difference.get(key, [])]}
            for key, title in groups
            if difference.get(key)
        ],
    }
