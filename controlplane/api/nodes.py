"""Nodes and their stages; staff drain and resume them."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.fleet import models as rows
from controlplane.fleet import service
from controlplane.jobs import record
from controlplane.queries import nodes


class NodeSerializer(ReadModelSerializer):
    class Meta:
        model = nodes.Node
        read = nodes.shown


class NodeDetailSerializer(ReadModelSerializer):
    class Meta:
        model = nodes.NodeDetail
        read = nodes.details


class AsideDecisionSerializer(StrictSerializer):
    """``part`` is one of the node's ``conditions.aside``; discarding it requires a reason."""

    part = serializers.CharField()
    do = serializers.ChoiceField(["release", "discard"])
    reason = serializers.CharField(default="", allow_blank=True)


@extend_schema_view(
    list=extend_schema(description="The nodes of the cluster with their devices."),
    retrieve=extend_schema(description="A node by its name or id, with how its host is."),
)
class NodeViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Machines that run an agent; staff drain and resume them."""

    scope = "admin"
    permits = {
        "drain": (Permit.OPERATE_NODES, gettext_noop("drain a node")),
        "lost": (Permit.OPERATE_NODES, gettext_noop("confirm that a node is gone")),
        "rotate": (Permit.OPERATE_NODES, gettext_noop("give a node a new credential")),
        "resume": (Permit.OPERATE_NODES, gettext_noop("resume a node")),
        "quarantine": (Permit.OPERATE_NODES, gettext_noop("decide about a part that is set aside")),
    }
    examples = {"name": "n1"}
    queryset = nodes.all_nodes()
    filterset_class = nodes.NodeFilter
    ordering = nodes.ORDER

    def get_serializer_class(self) -> Any:
        return NodeDetailSerializer if self.action == "retrieve" else NodeSerializer

    def get_object(self) -> rows.Node:
        return nodes.found(self.kwargs["name"])

    @reasoned_action
    def drain(self, request: Request, name: str) -> Response:
        """Drains the node: running stages finish, nothing new is placed. A reason is required."""
        return self.act(service.drain)

    @reasoned_action
    def lost(self, request: Request, name: str) -> Response:
        """Confirms that a LOST node is gone: its stages have ended, and are requeued if they may be. A reason is
        required."""
        return self.act(record.give_up)

    @reasoned_action
    def rotate(self, request: Request, name: str) -> Response:
        """Gives the node's agent a new credential through its link. The old one is valid until the new one is used."""
        return self.act(service.rotate)

    @reasoned_action
    def resume(self, request: Request, name: str) -> Response:
        """Returns a drained node to service."""
        return self.act(service.resume)

    @extend_schema(
        request=AsideDecisionSerializer,
        examples=[OpenApiExample("Try again", {"part": "0" * 32, "do": "release"}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def quarantine(self, request: Request, name: str) -> Response:
        """Lets the agent adopt a quarantined part again (release), or end it so that its devices are free (discard)."""
        body, actor = self.body(AsideDecisionSerializer), self.user.get_username()
        service.decide_aside(self.get_object(), body["part"], body["do"], actor, body["reason"])
        return self.shown(self.get_object())
