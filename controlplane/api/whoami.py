"""Who is asking, and what they may do; and which server answers."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from agents.protocol import MIN_PROTO, PROTO
from controlplane.accounts import permissions
from controlplane.accounts.models import Member, Token
from controlplane.accounts.service import SCOPES
from controlplane.api.resource import Resource, signed_in


class Membership(msgspec.Struct, frozen=True):
    """A project of yours and your role in it."""

    project: str
    role: str


class Whoami(msgspec.Struct, frozen=True):
    """Who you are to this server. ``staff`` may open the administration, ``roles`` are the groups that you are in;
    ``token_expires_at`` is null for a browser's session."""

    user: str
    name: str
    staff: bool
    roles: list[str]
    default_project: str | None
    projects: list[Membership]
    scopes: list[str]
    token_expires_at: datetime | None


class Version(msgspec.Struct, frozen=True):
    """Which server this is and which agents it accepts."""

    server: str
    api: str
    cluster: str
    agent_proto: int
    agent_min_proto: int


class WhoAmI(Resource):
    """The asking user."""

    @extend_schema(operation_id="whoami", responses={200: Whoami})
    def get(self, request: Request) -> Response:
        """Who you are, your projects and what your token covers."""
        user = signed_in(request)
        token = request.auth if isinstance(request.auth, Token) else None
        members = Member.objects.filter(user=user).select_related("project").order_by("project__name")
        return Response(
            Whoami(
                user=user.get_username(),
                name=user.get_full_name(),
                staff=user.is_staff,
                roles=permissions.roles(user),
                default_project=user.default_project.name if user.default_project else None,
                projects=[Membership(member.project.name, member.role) for member in members],
                scopes=list(token.scopes) if token else list(SCOPES),
                token_expires_at=token.expires_at if token else None,
            )
        )


class ServerVersion(Resource):
    """The server's version; the one thing that is told to everybody."""

    permission_classes = [AllowAny]

    @extend_schema(operation_id="version", responses={200: Version}, auth=[])
    def get(self, request: Request) -> Response:
        """Which version this server has."""
        return Response(Version(settings.VERSION, "v1", settings.CLUSTER_NAME, PROTO, MIN_PROTO))
