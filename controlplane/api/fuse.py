"""The mass-loss fuse: how it stands, and its release by staff."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.action import Why
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.problem import Problem, Refused
from controlplane.api.resource import Resource, permitted, signed_in, taken
from controlplane.fleet import fuse


class Fuse(msgspec.Struct, frozen=True):
    """Since when the fuse is blown, null where it is whole; the silent nodes that ran something, of ``nodes`` in all.

    While it is blown nothing of theirs is started elsewhere.
    """

    blown_at: datetime | None
    silent: list[str]
    nodes: int


def _now() -> Fuse:
    found = fuse.state()
    return Fuse(found.blown_at, list(found.silent), found.nodes)


class MassLossFuse(Resource):
    """How the fuse stands."""

    @extend_schema(operation_id="fuse_get", responses={200: Fuse})
    def get(self, request: Request) -> Response:
        """Whether so many nodes fell silent together that none of them is given up."""
        signed_in(request)
        return Response(_now())


class FuseRelease(Resource):
    """The release of the fuse."""

    scope = "admin"

    @extend_schema(
        operation_id="fuse_release",
        request=Why,
        responses={200: Fuse, 403: Problem, 409: Problem, 422: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Lets silent nodes be given up: what ran there is started elsewhere where its owner wants that. Staff only; a
        reason is required."""
        user = permitted(request, Permit.RELEASE_FUSE, _("release the mass-loss fuse"))
        why = taken(request, Why).reason.strip()
        if not why:
            raise Refused(422, "reason_missing", _("say why the silent nodes may be given up: reason is empty"))
        fuse.release(user.get_username(), why[:200])
        return Response(_now())
