"""Pools: named sets of nodes with their own profiles and limits."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.models import Group
from django.db import transaction
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import changes
from controlplane.accounts.models import Project
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.mixins import unless_changed
from controlplane.api.named_field import NamedField
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import access as pool_access
from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.queries import pools

MOST_USERS: Final = 1_000


class PoolSerializer(ReadModelSerializer):
    class Meta:
        model = pools.Pool
        read = pools.shown


class PoolSettingsSerializer(editing.EditSerializer):
    """What people set of a pool; who may use it has an address of its own."""

    class Meta:
        model = rows.Pool
        fields = [
            *("name", "profile", "shadow_profile", "storage_path", "default_limit_s", "max_limit_s", "min_runtime_s"),
            *("mounts", "on_node_lost", "user_limit", "isolation", "repartition", "measure_links", "stopped_by"),
        ]


class ProfileChoiceSerializer(StrictSerializer):
    """New profiles of a pool; absent fields stay. An empty ``shadow_profile`` ends the shadow evaluation."""

    profile = serializers.CharField(default=None, allow_blank=True, allow_null=True)
    shadow_profile = serializers.CharField(default=None, allow_blank=True, allow_null=True)


class PoolUsersSerializer(StrictSerializer):
    """Who may use a pool, by name. If both lists are empty: every user, or none if the pool is ``restricted``, as it is
    after its last project and group were deleted. A pool with a list is always restricted."""

    projects = serializers.ListField(
        child=NamedField(slug_field="name", queryset=Project.objects.all()),
        max_length=MOST_USERS,
        default=list,
    )
    groups = serializers.ListField(
        child=NamedField(slug_field="name", queryset=Group.objects.all()),
        max_length=MOST_USERS,
        default=list,
    )
    restricted = serializers.BooleanField(default=False)


@extend_schema_view(
    list=extend_schema(description="All pools of the cluster."),
    retrieve=extend_schema(description="A pool by its name."),
)
class PoolViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Named sets of nodes."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_POOLS, gettext_noop("add a pool")),
        "partial_update": (Permit.CHANGE_POOLS, gettext_noop("change a pool")),
        "destroy": (Permit.DELETE_POOLS, gettext_noop("delete a pool")),
        "show_settings": (Permit.SEE_POOLS, gettext_noop("see what is set of a pool")),
        "profile": (Permit.CHANGE_POOLS, gettext_noop("change the profile of a pool")),
        "access": (Permit.SEE_POOLS, gettext_noop("see who may use a pool")),
        "allow": (Permit.CHANGE_POOLS, gettext_noop("set who may use a pool")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("pool {name}")
    examples = {"name": "default"}
    queryset = rows.Pool.objects.all()
    serializer_class = PoolSerializer
    pagination_class = WholeList

    @extend_schema(
        operation_id="pools_create",
        request=PoolSettingsSerializer,
        responses={201: PoolSerializer},
        examples=[
            OpenApiExample(
                "For short jobs", {"name": "short", "default_limit_s": 600, "max_limit_s": 3600}, request_only=True
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Adds a pool, without nodes. For operators."""
        return self._told(editing.create(PoolSettingsSerializer, request.data), 201)

    @extend_schema(operation_id="pools_settings", responses=PoolSettingsSerializer)
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What is set of a pool; its ETag is what a change needs."""
        return Response(editing.settings_of(self.get_object(), PoolSettingsSerializer))

    @extend_schema(
        operation_id="pools_change",
        request=PoolSettingsSerializer,
        responses={200: PoolSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("An hour each", {"default_limit_s": 3600}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a pool, with ``If-Match`` of its settings as they were read. Running stages go on as they are. For
        operators."""
        return self._told(editing.change(request, self.get_object(), PoolSettingsSerializer))

    @extend_schema(
        operation_id="pools_delete",
        parameters=[editing.IF_MATCH],
        responses={204: None},
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a pool that never had a job; its nodes stay. For operators."""
        editing.delete(request, self.get_object(), PoolSettingsSerializer)
        changes.announce("fleet", "profiles")
        return Response(status=204)

    def _told(self, pool: rows.Pool, status: int = 200) -> Response:
        """Tell open pages of a changed pool, and answer with it."""
        changes.announce("fleet", "profiles")
        return self.shown(pool, status)

    @extend_schema(
        request=ProfileChoiceSerializer,
        examples=[OpenApiExample("Another profile", {"profile": "hybrid"}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def profile(self, request: Request, name: str) -> Response:
        """Gives the pool another profile, or another shadow profile, from the next cycle on. Only staff."""
        body, pool = self.body(ProfileChoiceSerializer), self.get_object()
        profiles.assign(pool, profile=body["profile"], shadow=body["shadow_profile"])
        return self.shown(pool)

    @extend_schema(responses=PoolUsersSerializer)
    @action(detail=True, methods=["get"])
    def access(self, request: Request, name: str) -> Response:
        """The projects and groups that may use the pool; every user if both are empty and it is not restricted."""
        return Response(pool_access.plain(self.get_object()))

    @extend_schema(
        request=PoolUsersSerializer,
        responses=PoolUsersSerializer,
        parameters=[editing.IF_UNCHANGED],
        examples=[OpenApiExample("One project", {"projects": ["default"]}, request_only=True)],
    )
    @access.mapping.put
    def allow(self, request: Request, name: str) -> Response:
        """Lets only these projects and groups use the pool; every user if both are empty, or none if it is to be
        restricted.

        With ``If-Match`` only if it has not changed since it was read.
        """
        body = self.body(PoolUsersSerializer)
        with transaction.atomic():
            pool = rows.Pool.objects.select_for_update().get(pk=self.get_object().pk)
            unless_changed(request, pool_access.plain(pool))
            pool_access.allow(pool, body["projects"], body["groups"], restricted=body["restricted"])
        return Response(pool_access.plain(pool))
