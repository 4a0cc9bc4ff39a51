"""Pools: named sets of nodes with their own rules."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Model, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Project
from controlplane.accounts.permissions import Permit
from controlplane.api.pagination import WholeList
from controlplane.api.problem import Problem, Refused
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs.section import FieldError
from controlplane.pools import access, profiles
from controlplane.pools import models as rows
from controlplane.queries import pools
from controlplane.queries.reading import etag

M = TypeVar("M", bound=Model)


class PoolSerializer(ReadModelSerializer):
    class Meta:
        model = pools.Pool
        read = pools.shown


class PoolUsersSerializer(StrictSerializer):
    """Who may use a pool, by name."""

    projects = serializers.ListField(child=serializers.CharField(max_length=63), max_length=1000, default=list)
    groups = serializers.ListField(child=serializers.CharField(max_length=150), max_length=100, default=list)


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
    permits = {
        "profile": (Permit.CHANGE_POOLS, gettext_noop("change the profile of a pool")),
        "access": (Permit.SEE_POOLS, gettext_noop("see who may use a pool")),
        "allow": (Permit.CHANGE_POOLS, gettext_noop("set who may use a pool")),
    }
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

    @extend_schema(operation_id="pools_access", responses=pools.PoolUsers)
    @action(detail=True)
    def access(self, request: Request, name: str) -> Response:
        """The projects and groups that may use the pool; everybody where both are empty."""
        return Response(pools.users(self.get_object()))

    @extend_schema(
        operation_id="pools_allow",
        request=PoolUsersSerializer,
        responses={200: pools.PoolUsers, 412: Problem, 422: Problem},
        parameters=[OpenApiParameter("If-Match", str, "header", description="The ETag of what was read.")],
        examples=[OpenApiExample("For one project", {"projects": ["vision"]}, request_only=True)],
    )
    @access.mapping.put
    def allow(self, request: Request, name: str) -> Response:
        """Lets these projects and groups use the pool and nobody else; everybody where both are empty. ``If-Match``
        makes sure that they are still as they were read."""
        body = self.body(PoolUsersSerializer)
        with transaction.atomic():
            pool = rows.Pool.objects.select_for_update().get(pk=self.get_object().pk)
            now, wanted = etag(msgspec.json.encode(pools.users(pool))), request.headers.get("If-Match", "*")
            if wanted != "*" and now not in [one.strip() for one in wanted.split(",")]:
                raise Refused(412, "changed_meanwhile", _("somebody changed this meanwhile; read it again"))
            projects = _known(Project.objects.all(), body["projects"], "projects", _("project {name}"))
            groups = _known(Group.objects.all(), body["groups"], "groups", _("group {name}"))
            access.allow(pool, projects, groups)
        return Response(pools.users(pool))


def _known(found: QuerySet[M], names: list[str], field: str, what: str) -> list[M]:
    """The rows of these names; raises 422 for the first that there is none of."""
    by_name = {str(row): row for row in found.filter(name__in=names)}
    for index, name in enumerate(names):
        if name not in by_name:
            detail = _("there is no {what}").format(what=what.format(name=name[:63]))
            raise Refused(422, "invalid", detail, errors=[FieldError(f"/{field}/{index}", detail, "unknown")])
    return list(by_name.values())
