"""What is wrong with the installation, for ``yard doctor``."""

from __future__ import annotations

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.api.resource import Resource, signed_in
from controlplane.observability.health import checks


class HealthCheck(msgspec.Struct, frozen=True):
    """Whether one thing works; ``says`` is for staff, empty for others. Without what is ``vital`` nothing starts."""

    name: str
    ok: bool
    vital: bool
    says: str


class Installation(msgspec.Struct, frozen=True):
    """All checks; ``ok`` tells that each of them is."""

    ok: bool
    checks: list[HealthCheck]


class HealthNow(Resource):
    """The state of the installation."""

    @extend_schema(operation_id="health", responses={200: Installation})
    def get(self, request: Request) -> Response:
        """Whether database, scheduler, workers, queues and storage work."""
        sees_why = permissions.may(signed_in(request), Permit.SEE_ALARMS)
        found = checks()
        told = [HealthCheck(one.name, one.ok, one.vital, one.says if sees_why else "") for one in found]
        return Response(Installation(all(one.ok for one in found), told))
