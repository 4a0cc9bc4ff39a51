"""Topology: the NUMA nodes and link groups of each node, and the domain that it shares with others."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import nodes, topology


class TopologySerializer(ReadModelSerializer):
    class Meta:
        model = topology.Topology
        read = topology.shown


@extend_schema_view(
    list=extend_schema(description="Which devices and nodes stand near each other, and what their links carry.")
)
class TopologyViewSet(ListModelMixin, ResourceViewSet):
    """The topology of the cluster."""

    queryset = topology.nodes_with_devices()
    filterset_class = topology.TopologyFilter
    ordering = nodes.ORDER
    serializer_class = TopologySerializer
