"""What staff decide about a part that an agent could not take over: to try again, or to end it."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.nodes import Node, found, shown
from controlplane.api.problem import Problem
from controlplane.api.resource import Resource, permitted, taken
from controlplane.fleet import service


class Do(StrEnum):
    """What becomes of it."""

    RELEASE = "release"
    DISCARD = "discard"


class AsideDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``part`` is one of the node's ``conditions.aside``; to discard it needs a reason."""

    part: str
    do: Do
    reason: str = ""


class NodeQuarantine(Resource):
    """Parts that a node has set aside."""

    scope = "admin"

    @extend_schema(
        operation_id="nodes_quarantine",
        request=AsideDecision,
        responses={200: Node, 403: Problem, 404: Problem, 409: Problem},
    )
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Has the agent take a part over again (release), or end it so that its devices are free (discard)."""
        user = permitted(request, Permit.OPERATE_NODES, _("decide about a part that is set aside"))
        asked = taken(request, AsideDecision)
        service.decide_aside(found(name), asked.part, str(asked.do), user.get_username(), asked.reason)
        return Response(shown([found(name)], user)[0])
