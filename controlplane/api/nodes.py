"""Nodes and their stages; staff drain and resume them."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import changes
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.mixins import require_if_match
from controlplane.api.named_field import NamedField
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import DryRunSerializer, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import LONGEST_REASON, ResourceViewSet, reasoned_action
from controlplane.fleet import models as rows
from controlplane.fleet import service
from controlplane.fleet.models import DrainMode
from controlplane.jobs import drains, record
from controlplane.jobs.spec import LABEL
from controlplane.pools.models import Pool
from controlplane.queries import nodes, stopping

MOST_NODES = 500
LONGEST_S = 366 * 86_400.0


class NodeSerializer(ReadModelSerializer):
    class Meta:
        model = nodes.Node
        read = nodes.shown


class NodeDetailSerializer(ReadModelSerializer):
    class Meta:
        model = nodes.NodeDetail
        read = nodes.details


class NodeSettingsSerializer(editing.EditSerializer):
    """What people set of a node: its pools by name, and labels. Other labels stay; one that is null is taken away."""

    pools = NamedField(slug_field="name", queryset=Pool.objects.all(), many=True)
    labels = serializers.DictField(child=serializers.CharField(max_length=200, allow_blank=True, allow_null=True))

    class Meta:
        model = rows.Node
        fields = ["pools", "labels"]

    def validate_labels(self, given: dict[str, str | None]) -> dict[str, str]:
        """Return all labels of the node as they will be."""
        for name in given:
            if not LABEL.fullmatch(name):
                said = _("{name} cannot name a label: use up to 63 letters, digits and . _ / -")
                raise serializers.ValidationError(said.format(name=name[:63]))
        present = self.instance.labels if self.instance is not None else {}
        merged = {name: value for name, value in {**present, **given}.items() if value is not None}
        if len(merged) > service.MOST_LABELS:
            said = _("a node has at most {most} labels")
            raise serializers.ValidationError(said.format(most=service.MOST_LABELS))
        return merged


class DrainAskedSerializer(StrictSerializer):
    """A drain of nodes, named by their names or ids. ``deadline_s`` goes with the mode ``finish``: what still runs then
    is asked to save, and is queued again."""

    nodes = serializers.ListField(child=serializers.CharField(max_length=63), min_length=1, max_length=MOST_NODES)
    mode = serializers.ChoiceField(DrainMode.choices, default=DrainMode.FINISH)
    deadline_s = serializers.FloatField(default=None, allow_null=True, min_value=0, max_value=LONGEST_S)
    reason = serializers.CharField(default="", allow_blank=True, max_length=LONGEST_REASON)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["deadline_s"] is not None and attrs["mode"] != DrainMode.FINISH:
            raise serializers.ValidationError({"deadline_s": _("a deadline goes with the mode finish only")})
        return attrs


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
        "partial_update": (Permit.CHANGE_NODES, gettext_noop("change a node")),
        "show_settings": (Permit.SEE_NODES, gettext_noop("see what is set of a node")),
        "drain": (Permit.OPERATE_NODES, gettext_noop("drain a node")),
        "drain_several": (Permit.OPERATE_NODES, gettext_noop("drain a node")),
        "lost": (Permit.OPERATE_NODES, gettext_noop("confirm that a node is gone")),
        "rotate": (Permit.OPERATE_NODES, gettext_noop("give a node a new credential")),
        "resume": (Permit.OPERATE_NODES, gettext_noop("resume a node")),
        "quarantine": (Permit.OPERATE_NODES, gettext_noop("decide about a part that is set aside")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    examples = {"name": "n1"}
    queryset = nodes.all_nodes()
    filterset_class = nodes.NodeFilter
    ordering = nodes.ORDER

    def get_serializer_class(self) -> Any:
        return NodeDetailSerializer if self.action in ("retrieve", "partial_update") else NodeSerializer

    def get_object(self) -> rows.Node:
        return nodes.found(self.kwargs["name"])

    @extend_schema(operation_id="nodes_settings", responses=NodeSettingsSerializer)
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What is set of a node; its ETag is what a change needs."""
        return Response(editing.settings_of(self.get_object(), NodeSettingsSerializer))

    @extend_schema(
        operation_id="nodes_change",
        request=NodeSettingsSerializer,
        responses={200: NodeDetailSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("In a rack", {"labels": {"rack": "3"}}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes the pools and labels of a node, with ``If-Match`` of its settings as they were read. What runs there
        goes on. Labels that its agent reports come back with its next start. For operators."""
        editing.change(request, self.get_object(), NodeSettingsSerializer)
        changes.announce("fleet")
        return self.shown(self.get_object())

    @extend_schema(
        operation_id="nodes_drain_several",
        request=DrainAskedSerializer,
        responses={200: stopping.NodeDrain},
        parameters=[DryRunSerializer, editing.IF_MATCH],
        examples=[
            OpenApiExample(
                "Empty within two hours",
                {"nodes": ["n1"], "mode": "finish", "deadline_s": 7200, "reason": "the fan is to be changed"},
                request_only=True,
            )
        ],
    )
    @action(detail=False, methods=["post"], url_path="drain", filterset_class=None, pagination_class=None)
    def drain_several(self, request: Request) -> Response:
        """Drains nodes: nothing new is placed there, and what runs may ``finish``, is asked to ``save`` and queued
        again, or is stopped ``now`` and queued again. Tells which stages stop, what work is lost, and when the nodes
        are empty. With ``dry_run`` it tells what would be, without ``If-Match``, and does nothing."""
        only_tried, asked = self.asked(DryRunSerializer)["dry_run"], self.body(DrainAskedSerializer)
        chosen = list({node.pk: node for node in map(nodes.found, asked["nodes"])}.values())
        shown = stopping.of_drain(chosen, self.user, deadline_s=asked["deadline_s"], dry_run=only_tried)
        if not only_tried:
            require_if_match(request)
            if request.headers["If-Match"].strip() not in ("*", shown.version):
                raise RequestRefused(
                    412, "changed_meanwhile", _("something else runs there than was shown; look again")
                )
            drained = drains.drain(
                chosen,
                self.user.get_username(),
                asked["reason"].strip(),
                mode=DrainMode(asked["mode"]),
                deadline_s=asked["deadline_s"],
            )
            shown = stopping.drained(shown, drained)
        return Response(shown)

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
