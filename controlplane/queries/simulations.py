"""Simulations: a trace, a world, profiles, loads and seeds, run and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django_filters import FilterSet

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.reading import Representation, listed
from controlplane.queries.refusals import Unseen
from controlplane.simulations import models as rows
from controlplane.simulations import service
from controlplane.storage import BytesLost


class Simulation(msgspec.Struct, frozen=True):
    """A simulation. ``phase`` is WAITING, RUNNING, DONE, FAILED or CANCELLED; ``progress`` is from 0 to 1. ``fault`` is
    why it failed; ``doing_said`` and ``fault_said`` are the clauses of ``doing`` and ``fault``."""

    id: int
    name: str
    user: str
    source: str
    phase: str
    progress: float
    doing: str
    doing_said: list[Clause]
    fault: str
    fault_said: list[Clause]
    profiles: list[str]
    loads: list[float]
    seeds: list[int]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    simulated: bool


class SimulationDetail(msgspec.Struct, frozen=True):
    """A simulation with its request (without a trace sent as text) and, once it is done, its result."""

    simulation: Simulation
    scenario: dict[str, Any]
    result: dict[str, Any] | None


class ResultLost(Exception):
    """The stored result of a simulation is missing."""


def visible(user: User) -> QuerySet[rows.Simulation]:
    """This user's simulations, or everybody's with the permission. Ends those whose process is gone first."""
    service.settle_lost()
    found = rows.Simulation.objects.select_related("user")
    return found if permissions.may(user, Permit.SEE_SIMULATIONS) else found.filter(user=user)


def found(user: User, number: int) -> rows.Simulation:
    """The simulation with this number, if this user may see it; raises 404 otherwise."""
    row = visible(user).filter(pk=number).first()
    if row is None:
        raise Unseen(_("simulation {number}").format(number=number))
    return row


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the simulations that this user may see, newest first."""
    return listed(user, "/simulations", params, FilterSet(params, visible(user)), "-id", shown)


def one(user: User, number: int) -> SimulationDetail:
    """A simulation with its request and result."""
    row = found(user, number)
    try:
        return SimulationDetail(_shown(row), row.scenario, service.result_of(row))
    except BytesLost:
        raise ResultLost(_("the result of this simulation is not in the storage any more")) from None


def shown(rows: Iterable[rows.Simulation], user: User | None = None) -> list[Simulation]:
    """These simulations, which the user may see."""
    return [_shown(row) for row in rows]


def _shown(row: rows.Simulation) -> Simulation:
    return Simulation(
        id=row.pk,
        name=row.name,
        user=row.user.get_username(),
        source=row.source,
        phase=row.phase,
        progress=row.progress,
        doing=row.doing,
        doing_said=clauses(row.doing_said),
        fault=row.fault,
        fault_said=clauses(row.fault_said),
        profiles=list(row.scenario.get("profiles") or []),
        loads=list(row.scenario.get("loads") or [1.0]),
        seeds=list(row.scenario.get("seeds") or [0]),
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        simulated=True,
    )
