"""Quotas of projects, and how much of each is in use."""

from __future__ import annotations

from django.db.models import QuerySet
from rest_framework.mixins import ListModelMixin

from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import models as rows
from controlplane.queries import quotas


class QuotaSerializer(ReadModelSerializer):
    class Meta:
        model = quotas.Quota
        read = quotas.shown


class QuotaViewSet(ListModelMixin, ResourceViewSet):
    """The quotas of your projects and their use."""

    queryset = rows.Quota.objects.none()
    serializer_class = QuotaSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[rows.Quota]:
        return quotas.visible(self.user)
