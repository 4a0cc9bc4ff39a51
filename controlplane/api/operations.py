"""Operations: actions on many jobs that go on in the background, to watch and to cancel."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.permissions import permitted
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.bulk import service
from controlplane.jobs import models as rows
from controlplane.queries import operations


class OperationSerializer(ReadModelSerializer):
    class Meta:
        model = operations.Operation
        read = operations.shown


@extend_schema_view(
    list=extend_schema(description="Your operations of the last seven days, newest first; operators see everybody's."),
    retrieve=extend_schema(description="How far an operation is, and what was refused."),
)
class OperationViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Actions on many jobs. They begin by ``POST /jobs/bulk``."""

    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = rows.Operation.objects.none()
    ordering = "-id"
    serializer_class = OperationSerializer

    def get_queryset(self) -> QuerySet[rows.Operation]:
        return operations.visible(self.user)

    def get_object(self) -> rows.Operation:
        return operations.found(self.user, self.kwargs["number"])

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, number: int) -> Response:
        """Ends an operation after the job that it is at; what was done stays done. Twice is the same as once."""
        row = self.get_object()
        if row.user_id != self.user.pk:
            permitted(request, Permit.END_JOBS, gettext("cancel an operation of somebody else"))
        service.cancel(row)
        return self.shown(self.get_object())
