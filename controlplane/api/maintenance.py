"""Maintenance windows: when a node or a pool does not serve, and whom that concerns."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, asked, parameters, permitted, signed_in, taken
from controlplane.fleet import maintenance
from controlplane.fleet.models import MaintenanceWindow as Row
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Part
from controlplane.jobs.section import FieldError
from controlplane.pools.models import Pool

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class WindowAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A window for one node, or for all nodes of one pool. Times have a zone."""

    starts_at: Moment
    ends_at: Moment
    reason: str
    node: str = ""
    pool: str = ""


class MaintenanceWindow(msgspec.Struct, frozen=True):
    """A time in which a node, or all nodes of a pool, do not serve: nothing starts there that would run into it."""

    id: int
    node: str | None
    pool: str | None
    starts_at: datetime
    ends_at: datetime
    reason: str
    made_by: str
    cancelled_at: datetime | None
    cancelled_by: str


class Affected(msgspec.Struct, frozen=True):
    """A stage that runs on a node of the window now and may run into it; ``ends_by`` is where its limit ends it."""

    job: int
    stage: str
    user: str
    node: str
    ends_by: datetime | None


class MaintenanceWindowDetail(msgspec.Struct, frozen=True):
    """A window and what it meets; ``hidden`` counts stages of jobs that you may not see. ``window`` has the id 0 where
    it was only tried."""

    window: MaintenanceWindow
    affects: list[Affected]
    hidden: int


class MaintenanceWindowPage(msgspec.Struct, frozen=True):
    """One page of windows, the newest first."""

    results: list[MaintenanceWindow]
    next: str | None
    previous: str | None


class WindowQuery(PageQuery, frozen=True):
    """What a list of windows may be narrowed by."""

    node: str = ""
    pool: str = ""
    all: bool = False


class DryRun(msgspec.Struct, frozen=True):
    """Whether to try only."""

    dry_run: bool = False


DESCRIBED = {
    "node": "Name of a node: windows of it and of its pools.",
    "pool": "Name of a pool.",
    "all": "Those that have ended or were cancelled, too.",
    **PAGE_DESCRIBED,
}
TRIED = {"dry_run": "Tell what the window would meet, and write nothing."}


class MaintenanceWindows(Resource):
    """The list of windows."""

    scope = "admin"

    @extend_schema(
        operation_id="maintenance_list",
        responses={200: MaintenanceWindowPage},
        parameters=parameters(WindowQuery, DESCRIBED),
    )
    def get(self, request: Request) -> Response:
        """The windows that have not ended."""
        query = asked(request, WindowQuery)
        chosen = Row.objects.select_related("node", "pool") if query.all else maintenance.ahead(timezone.now())
        if query.node:
            chosen = chosen.filter(Q(node__name=query.node) | Q(pool__nodes__name=query.node))
        if query.pool:
            chosen = chosen.filter(pool__name=query.pool)
        page, links = page_of(chosen, request, "id", limit=query.limit, descending=True)
        return Response(MaintenanceWindowPage([shown(row) for row in page], **links))

    @extend_schema(
        operation_id="maintenance_plan",
        request=WindowAsked,
        responses={200: MaintenanceWindowDetail, 201: MaintenanceWindowDetail, 403: Problem, 422: Problem},
        parameters=[KEY, *parameters(DryRun, TRIED)],
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Plans a window, and tells which stages that run now may run into it. Only staff."""
        only_tried = asked(request, DryRun).dry_run
        user = permitted(request, Permit.PLAN_MAINTENANCE, _("plan a maintenance"))
        body = taken(request, WindowAsked)
        node = Node.objects.filter(name=body.node).first() if body.node else None
        pool = Pool.objects.filter(name=body.pool).first() if body.pool else None
        if body.node and node is None:
            raise _faulty("node", _("there is no node {name}").format(name=body.node[:63]))
        if body.pool and pool is None:
            raise _faulty("pool", _("there is no pool {name}").format(name=body.pool[:63]))
        if fault := maintenance.unfit(node, pool, body.starts_at, body.ends_at, body.reason):
            raise _faulty(*fault)
        row = maintenance.plan(
            node=node,
            pool=pool,
            starts_at=body.starts_at,
            ends_at=body.ends_at,
            reason=body.reason,
            actor=user.get_username(),
            only_tried=only_tried,
        )
        return Response(_detail(row, user), status=200 if only_tried else 201)


class OneMaintenanceWindow(Resource):
    """One window."""

    @extend_schema(operation_id="maintenance_get", responses={200: MaintenanceWindowDetail, 404: Problem})
    def get(self, request: Request, number: int) -> Response:
        """A window, and which stages that run now may run into it."""
        return Response(_detail(_row(number), signed_in(request)))


class MaintenanceCancel(Resource):
    """Calls a window off."""

    scope = "admin"

    @extend_schema(
        operation_id="maintenance_cancel",
        request=None,
        responses={200: MaintenanceWindow, 403: Problem, 404: Problem, 409: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, number: int) -> Response:
        """Calls a window off, also one that has begun. Only staff."""
        user = permitted(request, Permit.CANCEL_MAINTENANCE, _("cancel a maintenance"))
        return Response(shown(maintenance.cancel(_row(number), user.get_username())))


def shown(row: Row) -> MaintenanceWindow:
    """The window as the API tells it."""
    return MaintenanceWindow(
        id=row.pk,
        node=row.node.name if row.node else None,
        pool=row.pool.name if row.pool else None,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        reason=row.reason,
        made_by=row.made_by,
        cancelled_at=row.cancelled_at,
        cancelled_by=row.cancelled_by,
    )


def _faulty(field: str, detail: str) -> Refused:
    return Refused(422, "invalid_window", detail, errors=[FieldError(f"/{field}", detail, "invalid")])


def _row(number: int) -> Row:
    row = Row.objects.select_related("node", "pool").filter(pk=number).first()
    if row is None:
        raise not_found(_("maintenance window {number}").format(number=number))
    return row


def _detail(row: Row, user: User) -> MaintenanceWindowDetail:
    affected = [one for one in _running(row) if one[1].ends_by is None or one[1].ends_by > row.starts_at]
    numbers = {job for job, _one in affected}
    visible = set(Job.objects.filter(permissions.visible_jobs(user), pk__in=numbers).values_list("pk", flat=True))
    return MaintenanceWindowDetail(
        shown(row),
        [one for job, one in affected if job in visible],
        sum(job not in visible for job, _one in affected),
    )


def _running(row: Row) -> Iterable[tuple[uuid.UUID, Affected]]:
    """What runs on the nodes of the window, with the ids of the jobs."""
    where = Q(node=row.node) if row.node else Q(node__pools=row.pool)
    parts = Part.objects.filter(where, ended_at=None, attempt__ended_at=None)
    chosen = parts.select_related("attempt__stage__job__user", "node")
    for part in chosen.order_by("attempt__stage__job__number", "attempt__stage__index", "rank"):
        attempt, stage = part.attempt, part.attempt.stage
        limit_s = stage.request["time_limit_s"]
        began_at = attempt.started_at or attempt.created_at
        ends_by = began_at + timedelta(seconds=limit_s) if limit_s else None
        user = stage.job.user.get_username()
        yield stage.job_id, Affected(stage.job.number, stage.name, user, part.node.name, ends_by)
