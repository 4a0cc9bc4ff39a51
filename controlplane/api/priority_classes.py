"""Priority classes: named priorities."""

from __future__ import annotations

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin

from controlplane.api.pagination import WholeList
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools.models import PriorityClass
from controlplane.queries.priority_classes import priority_classes


class PriorityClassSerializer(serializers.ModelSerializer):
    """A named number; bigger is more urgent. ``restricted`` classes are for leads of a project and for staff."""

    restricted = serializers.BooleanField(source="staff_only", read_only=True)

    class Meta:
        model = PriorityClass
        fields = read_only_fields = ["name", "value", "preemptible", "restricted"]


class PriorityClassViewSet(ListModelMixin, ResourceViewSet):
    """All priority classes, highest priority first."""

    serializer_class = PriorityClassSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[PriorityClass]:
        return priority_classes()
