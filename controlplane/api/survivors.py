"""Survivors of a restored database: staff list, stop and forget them."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.fleet import models as rows
from controlplane.fleet import survivors as service
from controlplane.queries import survivors


class SurvivorSerializer(ReadModelSerializer):
    class Meta:
        model = survivors.Survivor


@extend_schema_view(
    list=extend_schema(
        description="What runs on nodes and the record does not know, for it was restored from a backup."
    )
)
class SurvivorViewSet(ListModelMixin, ResourceViewSet):
    """Survivors of a restored database, by node."""

    scope = "admin"
    permits = {
        "list": (Permit.SEE_NODES, gettext_noop("list survivors")),
        "stop": (Permit.END_SURVIVORS, gettext_noop("stop a survivor")),
        "forget": (Permit.END_SURVIVORS, gettext_noop("have a survivor forgotten")),
    }
    examples = {"name": "00000000-0000-4000-8000-000000000000"}
    queryset = rows.Node.objects.exclude(survivors={}).order_by("sort_key")
    serializer_class = SurvivorSerializer
    pagination_class = WholeList

    def paginate_queryset(self, queryset: Any) -> Any:
        return survivors.of_nodes(queryset)

    def get_object(self) -> survivors.Survivor:
        return survivors.found(self.kwargs["name"])

    @reasoned_action
    def stop(self, request: Request, name: str) -> Response:
        """Stops a survivor, with time to save. A reason is required."""
        return self.act(lambda one, actor, reason: service.stop(one.part, actor, reason))

    @reasoned_action
    def forget(self, request: Request, name: str) -> Response:
        """Removes an ended survivor and its folder with logs from its node."""
        return self.act(lambda one, actor, reason: service.forget(one.part, actor, reason))
