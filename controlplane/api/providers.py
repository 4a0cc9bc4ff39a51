"""Providers of nodes: foreign engines that run this cluster's agents, and the pilots there."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import changes
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.named_field import NamedField
from controlplane.api.pagination import WholeList
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools.models import Pool
from controlplane.providers import models as rows
from controlplane.queries import providers


class NodeProviderSerializer(ReadModelSerializer):
    class Meta:
        model = providers.NodeProvider
        read = providers.shown


class PilotSerializer(ReadModelSerializer):
    class Meta:
        model = providers.Pilot
        read = providers.pilots_shown


class NodeProviderSettingsSerializer(editing.EditSerializer):
    """What people set of a provider. The keys of ``settings`` and ``shapes`` are those of its kind."""

    pool = NamedField("name", queryset=Pool.objects.all())

    class Meta:
        model = rows.NodeProvider
        fields = [
            *("name", "kind", "pool", "settings", "shapes", "min_nodes", "max_nodes", "hours", "budget_node_hours"),
            *("idle_s", "wait_s", "enabled"),
        ]


EXAMPLE = {
    "name": "hpc",
    "kind": "slurm",
    "pool": "default",
    "settings": {"python": "/opt/switchyard/bin/python", "partition": "gpu", "account": "vision"},
    "shapes": [
        {
            "name": "h100x4",
            "cpus": 32,
            "memory_gib": 256,
            "gres": "gpu:h100:4",
            "devices": [{"kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "count": 4, "memory_gib": 80}],
        }
    ],
    "max_nodes": 8,
    "hours": 4,
    "budget_node_hours": 500,
}


@extend_schema_view(
    list=extend_schema(description="The providers, and what is known of them. For operators."),
    retrieve=extend_schema(description="A provider by its name. For operators."),
)
class NodeProviderViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Foreign engines that bring nodes."""

    scope = "admin"
    _see = (Permit.SEE_PROVIDERS, gettext_noop("see providers"))
    permits = {
        "list": _see,
        "retrieve": _see,
        "show_settings": _see,
        "list_pilots": _see,
        "create": (Permit.ADD_PROVIDERS, gettext_noop("add a provider")),
        "partial_update": (Permit.CHANGE_PROVIDERS, gettext_noop("change a provider")),
        "destroy": (Permit.DELETE_PROVIDERS, gettext_noop("delete a provider")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    largest_body = 65_536
    noun = gettext_noop("provider {name}")
    examples = {"name": "hpc"}
    queryset = rows.NodeProvider.objects.select_related("pool")
    serializer_class = NodeProviderSerializer
    pagination_class = WholeList

    @extend_schema(
        operation_id="providers_create",
        request=NodeProviderSettingsSerializer,
        responses={201: NodeProviderSerializer},
        examples=[OpenApiExample("Over a Slurm", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Adds a provider, which brings nodes from now on while stages wait for them. For operators."""
        return self._told(editing.create(NodeProviderSettingsSerializer, request.data), 201)

    @extend_schema(operation_id="providers_settings", responses=NodeProviderSettingsSerializer)
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What is set of a provider; its ETag is what a change needs."""
        return Response(editing.settings_of(self.get_object(), NodeProviderSettingsSerializer))

    @extend_schema(
        operation_id="providers_change",
        request=NodeProviderSettingsSerializer,
        responses={200: NodeProviderSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("Give all nodes back", {"enabled": False}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a provider, with ``If-Match`` of its settings as they were read. One that is not ``enabled`` drains
        its nodes and gives them back. For operators."""
        return self._told(editing.change(request, self.get_object(), NodeProviderSettingsSerializer))

    @extend_schema(operation_id="providers_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a provider without pilots. For operators."""
        row = self.get_object()
        with transaction.atomic():
            # Whoever asks for pilots locks this row too.
            locked = rows.NodeProvider.objects.select_for_update(of=("self",)).filter(pk=row.pk).first()
            if locked is not None and locked.pilots.exclude(state=rows.Pilot.PilotState.GONE).exists():
                detail = _("provider {name} has pilots: disable it, and delete it once they are gone")
                raise RequestRefused(409, "in_use", detail.format(name=row.name))
            editing.delete(request, row, NodeProviderSettingsSerializer)
        changes.announce("fleet")
        return Response(status=204)

    @extend_schema(operation_id="providers_pilots", responses=PilotSerializer(many=True))
    @action(detail=True, url_path="pilots")
    def list_pilots(self, request: Request, name: str) -> Response:
        """The pilots of a provider, newest first, those that are gone included: at most 500. For operators."""
        found = providers.pilots_of(self.get_object())[: providers.MOST_PILOTS]
        return Response({"results": providers.pilots_shown(found, self.user)})

    def _told(self, row: rows.NodeProvider, status: int = 200) -> Response:
        """Tell open pages of a changed provider, and answer with it."""
        changes.announce("fleet")
        return self.shown(row, status)
