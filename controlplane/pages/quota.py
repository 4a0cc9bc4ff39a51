"""Quota: what projects may hold, hold, borrow and lend now, their fair share, budgets and limits; also as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.natural import natural_key
from controlplane.pages.shell import page, reader, title_of
from controlplane.pools.models import Budget, Pool
from controlplane.queries import budgets, limits, pools, priority_classes, quotas, usage

MOST_ROWS = 300
# Columns of the file. Amounts are devices (CPU: cores), of budgets hours, of fair share parts of 1.
COLUMNS = (
    "what", "project", "pool", "user", "kind", "model", "normalised", "period", "until", "nominal", "used", "borrowed",
    "lent", "limit", "forecast", "ends_at", "at_end",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProjectRights:
    """All that a user may see of the rights and the use of their projects, or of one of them."""

    project: str
    projects: list[str]
    holdings: list[quotas.PoolHolding]
    quotas: list[quotas.Quota]
    shares: list[usage.ProjectShare]
    budgets: list[budgets.Budget]
    limits: list[limits.Limit]


def _rights(user: User, asked: str) -> ProjectRights:
    names = sorted(permissions.visible_projects(user).values_list("name", flat=True), key=natural_key)
    project = asked if asked in names else ""
    only = {"project__name": project} if project else {}
    seen = set(names)
    shares = usage.usage(user, usage.asked(by="project")).shares
    found = limits.shown(limits.visible(user), user)
    return ProjectRights(
        project=project,
        projects=names,
        quotas=quotas.shown(quotas.visible(user).filter(**only), user),
        holdings=quotas.held_by_pool(user, project),
        shares=[one for one in shares if one.project in ({project} if project else seen)],
        budgets=budgets.shown(budgets.visible(user).filter(**only), user),
        limits=[one for one in found if not project or one.project in (None, project)],
    )


def _bar(quota: quotas.Quota) -> dict[str, Any]:
    """A quota with the parts of its bar, as shares of 1: own devices in use, borrowed ones, and those that it lends."""
    nominal = quota.nominal or 0.0
    most = nominal + (quota.borrowing_limit or 0.0)
    whole = max(quota.held + quota.lent, most, 1e-9)
    return {
        "row": quota,
        "own": (quota.held - quota.borrowed) / whole,
        "borrowed": quota.borrowed / whole,
        "lent": quota.lent / whole,
    }


def _budget(one: budgets.Budget) -> dict[str, Any]:
    """A budget with the parts of its bar: what is used, and what the forecast adds."""
    whole = max(one.hours, one.forecast_hours, 1e-9)
    return {
        "row": one,
        "used": one.used_hours / whole,
        "more": max(0.0, one.forecast_hours - one.used_hours) / whole,
        "share": one.used_hours / one.hours if one.hours else 1.0,
        "period": Budget.Period(one.period).label,
        "then": Budget.AtEnd(one.at_end).label,
    }


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    found = _rights(user, request.GET.get("project", ""))
    return page(
        request,
        "quota.html",
        {
            "project": found.project,
            "projects": found.projects,
            "quotas": [_bar(one) for one in found.quotas[:MOST_ROWS]],
            "holdings": found.holdings[:MOST_ROWS],
            "shares": found.shares,
            "most_share": max((max(share.target, share.received) for share in found.shares), default=1.0),
            "budgets": [_budget(one) for one in found.budgets[:MOST_ROWS]],
            "limits": found.limits[:MOST_ROWS],
            "classes": priority_classes.shown(priority_classes.priority_classes(), user, found.project)[:MOST_ROWS],
            "pools": pools.shown(Pool.objects.all(), user)[:MOST_ROWS],
        },
        place="quota",
        crumbs=[(title_of("quota"), "")],
    )


@login_required
@require_safe
def table(request: HttpRequest) -> HttpResponse:
    """The same as CSV, one row for each quota, holding, share, budget and limit."""
    found = _rights(reader(request), request.GET.get("project", ""))
    text = io.StringIO()
    write = csv.writer(text).writerow
    write(COLUMNS)
    for row in _rows(found):
        write(usage.cell(row.get(name)) for name in COLUMNS)
    response = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="quota.csv"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _rows(found: ProjectRights) -> Iterator[dict[str, Any]]:
    for quota in found.quotas:
        sort = {"project": quota.project, "kind": quota.kind, "model": quota.model, "normalised": quota.normalised}
        amounts = {"nominal": quota.nominal, "used": quota.held, "borrowed": quota.borrowed, "lent": quota.lent}
        unlimited = quota.nominal is None or quota.borrowing_limit is None
        most = None if unlimited else (quota.nominal or 0.0) + (quota.borrowing_limit or 0.0)
        yield {"what": "quota", **sort, **amounts, "limit": most}
    for held in found.holdings:
        where = {"project": held.project, "pool": held.pool, "kind": held.kind}
        yield {"what": "held", **where, "used": held.held, "limit": held.capacity}
    for share in found.shares:
        yield {"what": "fair share", "project": share.project, "nominal": share.target, "used": share.received}
    for one in found.budgets:
        sort = {"project": one.project, "kind": one.kind, "normalised": one.normalised, "period": one.period}
        ends = one.ends_at.isoformat(timespec="seconds") if one.ends_at else None
        numbers = {"used": one.used_hours, "limit": one.hours, "forecast": one.forecast_hours}
        yield {"what": "budget", **sort, **numbers, "until": one.last_day, "ends_at": ends, "at_end": one.at_end}
    for limit in found.limits:
        whose = {"project": limit.project, "pool": limit.pool, "user": limit.user}
        for name in ("running", "waiting", "devices"):
            allowed, now = getattr(limit, name), getattr(limit, f"{name}_now")
            if allowed is not None:
                yield {"what": f"limit of {name}", **whose, "used": float(now), "limit": float(allowed)}
