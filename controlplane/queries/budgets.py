"""Budgets of device-hours of projects, what is used of each, and when it ends at the present rate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.pools import models as rows
from controlplane.usage import budgets as counted


class Budget(msgspec.Struct, frozen=True):
    """A project's budget of device-hours in a period of UTC days: of a kind, of all devices other than CPUs where the
    kind is empty, or, if normalised, in hours of an A100. Of ``cpu``, hours of one core.

    ``first_day`` and ``last_day`` are those of the present period, and all numbers are of it. ``used_hours`` has what
    is held now, up to now. ``hours_per_day`` is the present rate: the mean of the last seven days, from the first on
    which anything was used; at it ``forecast_hours`` will be used in the whole period, and the budget is used up at
    ``ends_at``, null if it lasts. ``at_end`` is what happens then: leads are told (``notify``), nothing more starts
    until ``until_at`` (``hold``), or what runs is also asked to save and stopped (``stop``).
    """

    number: int
    project: str
    kind: str
    normalised: bool
    period: str
    first_day: date
    last_day: date
    until_at: datetime
    hours: float
    at_end: str
    used_hours: float
    hours_per_day: float | None
    forecast_hours: float
    ends_at: datetime | None
    is_used_up: bool


def visible(user: User) -> QuerySet[rows.Budget]:
    """The budgets of the projects that this user may see."""
    return rows.Budget.objects.filter(project__in=permissions.visible_projects(user)).select_related("project")


def shown(budgets: Iterable[rows.Budget], _user: User) -> list[Budget]:
    """These budgets, and what is used of each."""
    budgets = list(budgets)
    found = counted.count(budgets, timezone.now()) if budgets else {}
    return [_shown(budget, found[budget.pk]) for budget in budgets]


def _shown(budget: rows.Budget, found: counted.Count) -> Budget:
    return Budget(
        number=budget.pk,
        project=budget.project.name,
        kind=budget.kind,
        normalised=budget.normalised,
        period=budget.period,
        first_day=found.first_day,
        last_day=found.last_day,
        until_at=found.until_at,
        hours=budget.hours,
        at_end=budget.at_end,
        used_hours=round(found.used_hours, 4),
        hours_per_day=None if found.hours_per_day is None else round(found.hours_per_day, 4),
        forecast_hours=round(found.forecast_hours, 4),
        ends_at=found.ends_at,
        is_used_up=found.used_hours >= budget.hours,
    )
