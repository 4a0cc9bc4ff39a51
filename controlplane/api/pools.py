"""Pools: named sets of nodes with their own rules."""

from __future__ import annotations

from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.queries import pools


class PoolSerializer(ReadModelSerializer):
    class Meta:
        model = pools.Pool
        read = pools.shown


class ProfileChoiceSerializer(StrictSerializer):
    """The profiles that a pool is to have; what is left out stays. An empty ``shadow_profile`` ends thinking beside."""

    profile = serializers.CharField(default=None, allow_blank=True, allow_null=True)
    shadow_profile = serializers.CharField(default=None, allow_blank=True, allow_null=True)


@extend_schema_view(
    list=extend_schema(description="All pools of the cluster."),
    retrieve=extend_schema(description="A pool by its name."),
)
class PoolViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Named sets of nodes."""

    scope = "admin"
    permits = {"profile": (Permit.CHANGE_POOLS, gettext_noop("change the profile of a pool"))}
    noun = gettext_noop("pool {name}")
    examples = {"name": "default"}
    queryset = rows.Pool.objects.all()
    serializer_class = PoolSerializer
    pagination_class = WholeList

    @extend_schema(
        request=ProfileChoiceSerializer,
        examples=[OpenApiExample("Another profile", {"profile": "hybrid"}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def profile(self, request: Request, name: str) -> Response:
        """Gives the pool another profile, or another one that thinks beside it, from the next cycle on. Only staff."""
        body, pool = self.body(ProfileChoiceSerializer), self.get_object()
        profiles.assign(pool, profile=body["profile"], shadow=body["shadow_profile"])
        return self.shown(pool)
