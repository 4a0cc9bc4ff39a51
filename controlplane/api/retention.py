"""Retention: what would be removed now."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import retention


class RetentionViewSet(ResourceViewSet):
    """Retention of the whole cluster."""

    @extend_schema(responses=retention.RetentionDueList)
    @action(detail=False)
    def preview(self, request: Request) -> Response:
        """The records of your projects that would be removed now; operators and auditors see all projects and the
        cluster. Removes nothing."""
        return Response(retention.due(self.user))
