"""Simulations: a trace, a world, profiles, loads and seeds, lived through beside the cluster and kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.body import LARGEST_BATCH
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, asked, parameters, permitted, signed_in, taken
from controlplane.api.room import HasRoom
from controlplane.simulations import models as rows
from controlplane.simulations import service
from controlplane.storage import BytesLost


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to live through.

    ``trace`` has one of ``text`` (CSV, SWF or JSON lines, with ``format`` where it is not plain), ``generate`` (jobs,
    per_hour, median_s, sigma, widths, projects, daily, seed) and ``history`` (days: finished stages that you may see);
    ``first`` takes only so many. ``world`` has nodes (``8x8:H100,4x8:A100``), cores, error, mtbf_h, checkpoint_s,
    every_s and weights of projects. ``profiles`` are names, or a mapping of names to profiles as data.
    """

    name: str = "simulation"
    trace: dict[str, Any] = {}
    world: dict[str, Any] = {}
    profiles: list[str] | dict[str, Any] = []
    loads: list[float] = msgspec.field(default_factory=lambda: [1.0])
    seeds: list[int] = msgspec.field(default_factory=lambda: [0])


class Simulation(msgspec.Struct, frozen=True):
    """A simulation as it stands. ``phase`` is WAITING, RUNNING, DONE, FAILED or CANCELLED; ``progress`` is from 0 to 1.
    ``fault`` says why it failed."""

    id: int
    name: str
    user: str
    source: str
    phase: str
    progress: float
    doing: str
    fault: str
    profiles: list[str]
    loads: list[float]
    seeds: list[int]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    simulated: bool


class SimulationDetail(msgspec.Struct, frozen=True):
    """A simulation with what was asked (a trace sent as text is left out) and what came of it, once it is done."""

    simulation: Simulation
    scenario: dict[str, Any]
    result: dict[str, Any] | None


class SimulationPage(msgspec.Struct, frozen=True):
    """One page of simulations, newest first."""

    results: list[Simulation]
    next: str | None
    previous: str | None


class Allowed(BasePermission):
    """Refuses a new simulation where none may begin, before its trace is read."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.method == "POST":
            service.check_room(signed_in(request))
        return True


class Simulations(Resource):
    """The list of simulations."""

    permission_classes = [*Resource.permission_classes, HasRoom, Allowed]
    largest_body = LARGEST_BATCH

    @extend_schema(
        operation_id="simulations_list",
        responses={200: SimulationPage},
        parameters=parameters(PageQuery, PAGE_DESCRIBED),
    )
    def get(self, request: Request) -> Response:
        """Your simulations, newest first; staff see everybody's."""
        query = asked(request, PageQuery)
        service.settle_lost()
        found = _visible(signed_in(request))
        page, links = page_of(found, request, "id", limit=query.limit, descending=True)
        return Response(SimulationPage([shown(row) for row in page], **links))

    @extend_schema(
        operation_id="simulations_submit",
        request=Scenario,
        responses={201: Simulation, 422: Problem, 429: Problem, 507: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Begins a simulation: at most 20,000 stages, 20,000 devices and 24 worlds (profiles x loads x seeds)."""
        body = msgspec.to_builtins(taken(request, Scenario))
        return Response(shown(service.submit(body, signed_in(request))), status=201)


class OneSimulation(Resource):
    """One simulation."""

    @extend_schema(operation_id="simulations_get", responses={200: SimulationDetail, 404: Problem, 410: Problem})
    def get(self, request: Request, number: int) -> Response:
        """How far it is, and its figures, curves, projects and bars once it is done."""
        service.settle_lost()
        row = _row(request, number)
        try:
            return Response(SimulationDetail(shown(row), row.scenario, service.result_of(row)))
        except BytesLost:
            raise Refused(
                410, "result_lost", _("the result of this simulation is not in the storage any more")
            ) from None


class SimulationCancel(Resource):
    """Ends a simulation."""

    @extend_schema(
        operation_id="simulations_cancel",
        request=None,
        responses={200: Simulation, 403: Problem, 404: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, number: int) -> Response:
        """Asks its process to end, which it does within a second; one that has ended stays as it is."""
        row, user = _row(request, number), signed_in(request)
        if row.user_id != user.pk:
            permitted(request, Permit.CANCEL_SIMULATIONS, _("cancel a simulation of somebody else"))
        service.cancel(row)
        return Response(shown(_row(request, number)))


def _visible(user: User) -> Any:
    found = rows.Simulation.objects.select_related("user")
    return found if permissions.may(user, Permit.SEE_SIMULATIONS) else found.filter(user=user)


def _row(request: Request, number: int) -> rows.Simulation:
    row: rows.Simulation | None = _visible(signed_in(request)).filter(pk=number).first()
    if row is None:
        raise not_found(_("simulation {number}").format(number=number))
    return row


def shown(row: rows.Simulation) -> Simulation:
    """The simulation as the API tells it."""
    return Simulation(
        id=row.pk,
        name=row.name,
        user=row.user.get_username(),
        source=row.source,
        phase=row.phase,
        progress=row.progress,
        doing=row.doing,
        fault=row.fault,
        profiles=list(row.scenario.get("profiles") or []),
        loads=list(row.scenario.get("loads") or [1.0]),
        seeds=list(row.scenario.get("seeds") or [0]),
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        simulated=True,
    )
