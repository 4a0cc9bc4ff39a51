"""The audit log: who changed what, how, and what it was before and after."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import models as rows
from controlplane.accounts.permissions import Permit
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.problem import Problem, Refused
from controlplane.api.resource import Resource, asked, parameters, permitted
from controlplane.jobs.section import FieldError


class AuditEntry(msgspec.Struct, frozen=True):
    """A change. ``via`` is api, cli, page, admin or system; ``credential`` tells which token or session was used, and
    ``before`` and ``after`` hold what changed, with secrets masked and long values cut."""

    id: int
    at: datetime
    actor: str
    via: str
    credential: str
    action: str
    kind: str
    object_id: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    reason: str
    request_id: str


class AuditPage(msgspec.Struct, frozen=True):
    """One page of changes, newest first."""

    results: list[AuditEntry]
    next: str | None
    previous: str | None


class AuditQuery(PageQuery, frozen=True):
    """What the changes may be narrowed by."""

    actor: str = ""
    via: str = ""
    action: str = ""
    kind: str = ""
    object: str = ""
    since: str = ""
    until: str = ""


DESCRIBED = {
    "actor": "Name of who made the change.",
    "via": "api, cli, page, admin or system.",
    "action": "Such as node.drain; what ends with a dot is the beginning of several: node.",
    "kind": "What was changed, such as node, job or token.",
    "object": "Its id, or its name as the log has it, such as n1 or #12.",
    "since": "At this moment or later, as ISO 8601 with a zone.",
    "until": "Before this moment, as ISO 8601 with a zone.",
    **PAGE_DESCRIBED,
}


class AuditLog(Resource):
    """The audit log."""

    @extend_schema(
        operation_id="audit_list",
        responses={200: AuditPage, 400: Problem, 403: Problem},
        parameters=parameters(AuditQuery, DESCRIBED),
    )
    def get(self, request: Request) -> Response:
        """Who changed what, newest first. It needs the permission to read the audit log."""
        permitted(request, Permit.SEE_AUDIT, _("read the audit log"))
        query = asked(request, AuditQuery)
        page, links = page_of(_narrowed(query), request, "id", limit=query.limit, descending=True)
        found = [AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__struct_fields__}) for row in page]
        return Response(AuditPage(found, **links))


def _narrowed(query: AuditQuery) -> QuerySet[rows.AuditEntry]:
    found = rows.AuditEntry.objects.all()
    for name in ("actor", "via", "kind"):
        if wanted := getattr(query, name):
            found = found.filter(**{name: wanted})
    if query.action:
        found = found.filter(**{"action__startswith" if query.action.endswith(".") else "action": query.action})
    if query.object:
        found = found.filter(name=query.object) | found.filter(object_id=query.object)
    for name, lookup in (("since", "at__gte"), ("until", "at__lt")):
        if text := getattr(query, name):
            found = found.filter(**{lookup: _moment(name, text)})
    return found


def _moment(name: str, text: str) -> datetime:
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        detail = _("must be a time with a zone, such as 2027-01-31T18:00:00Z")
        raise Refused(400, "invalid", f"{name} {detail}", errors=[FieldError(f"/{name}", detail, "invalid")])
    return moment
