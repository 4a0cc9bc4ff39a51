"""The mass-loss fuse: its state, and its release by staff."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import ReasonSerializer
from controlplane.api.viewsets import LONGEST_REASON, WHY, SingleViewSet
from controlplane.fleet import fuse


class FuseSerializer(serializers.Serializer):
    """Since when the fuse is blown, null if it is not; the silent nodes with stages, and the total number of ``nodes``.

    While it is blown, stages of silent nodes are not requeued.
    """

    blown_at = serializers.DateTimeField(allow_null=True)
    silent = serializers.ListField(child=serializers.CharField())
    nodes = serializers.IntegerField()


class FuseViewSet(SingleViewSet):
    """The mass-loss fuse."""

    scope = "admin"
    permits = {"release": (Permit.RELEASE_FUSE, gettext_noop("release the mass-loss fuse"))}
    serializer_class = FuseSerializer

    def retrieve(self, request: Request) -> Response:
        """Whether the fuse is blown because many nodes fell silent together."""
        return self.shown(fuse.state())

    @extend_schema(request=ReasonSerializer, examples=[WHY])
    @action(detail=False, methods=["post"])
    def release(self, request: Request) -> Response:
        """Releases the fuse: silent nodes may be declared lost, and their stages are requeued if their owners asked for
        that. Staff only; a reason is required."""
        why = self.body(ReasonSerializer)["reason"].strip()
        if not why:
            raise RequestRefused(422, "reason_missing", _("say why the silent nodes may be given up: reason is empty"))
        fuse.release(self.user.get_username(), why[:LONGEST_REASON])
        return self.shown(fuse.state())
