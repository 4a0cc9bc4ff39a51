"""The current user and the user's rights, and the server that answers."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from agents.protocol import MIN_PROTO, PROTO
from controlplane.accounts import permissions
from controlplane.accounts.models import Member
from controlplane.accounts.service import SCOPES
from controlplane.api.viewsets import SingleViewSet


class MembershipSerializer(serializers.ModelSerializer):
    """A project of yours and your role in it."""

    project = serializers.CharField(source="project.name")

    class Meta:
        model = Member
        fields = ["project", "role"]


class WhoamiSerializer(serializers.Serializer):
    """The user as this server sees them. ``staff`` may open the administration, ``roles`` are the user's groups;
    ``token_expires_at`` is null for a browser's session."""

    user = serializers.CharField()
    name = serializers.CharField()
    staff = serializers.BooleanField()
    roles = serializers.ListField(child=serializers.CharField())
    default_project = serializers.CharField(allow_null=True)
    projects = MembershipSerializer(many=True)
    scopes = serializers.ListField(child=serializers.CharField())
    token_expires_at = serializers.DateTimeField(allow_null=True)


class VersionSerializer(serializers.Serializer):
    """The server's version and the agents that it accepts."""

    server = serializers.CharField()
    api = serializers.CharField()
    cluster = serializers.CharField()
    agent_proto = serializers.IntegerField()
    agent_min_proto = serializers.IntegerField()


class WhoamiViewSet(SingleViewSet):
    """The requesting user."""

    serializer_class = WhoamiSerializer

    @extend_schema(operation_id="whoami")
    def retrieve(self, request: Request) -> Response:
        """The requesting user, their projects and the scopes of the token."""
        user, token = self.user, self.access_token
        return self.shown(
            {
                "user": user.get_username(),
                "name": user.get_full_name(),
                "staff": user.is_staff,
                "roles": permissions.roles(user),
                "default_project": user.default_project.name if user.default_project else None,
                "projects": Member.objects.filter(user=user).select_related("project").order_by("project__name"),
                "scopes": token.scopes if token else SCOPES,
                "token_expires_at": token.expires_at if token else None,
            }
        )


class VersionViewSet(SingleViewSet):
    """The server's version; the only resource without sign-in."""

    permission_classes = [AllowAny]
    serializer_class = VersionSerializer

    @extend_schema(operation_id="version", auth=[])
    def retrieve(self, request: Request) -> Response:
        """The version of this server."""
        return self.shown(
            {
                "server": settings.VERSION,
                "api": request.version,
                "cluster": settings.CLUSTER_NAME,
                "agent_proto": PROTO,
                "agent_min_proto": MIN_PROTO,
            }
        )
