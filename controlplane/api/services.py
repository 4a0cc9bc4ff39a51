"""Inference services: models that answer requests, with replicas, updates and a way back."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.editing import IF_MATCH
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.permissions import owned
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import services
from controlplane.services import service
from controlplane.services.file import MOST_REPLICAS
from controlplane.services.models import InferenceService


class ServiceSerializer(ReadModelSerializer):
    class Meta:
        model = services.Service
        read = services.shown


class ServiceAskedSerializer(StrictSerializer):
    """A service file without values of secrets."""

    file = serializers.DictField(help_text="The service file.")


class ServiceChangeSerializer(StrictSerializer):
    """What is to change: the whole ``file``, or the numbers of replicas, or the canary's share."""

    file = serializers.DictField(required=False, help_text="The service file.")
    min = serializers.IntegerField(required=False, min_value=0, max_value=MOST_REPLICAS)
    max = serializers.IntegerField(required=False, min_value=0, max_value=MOST_REPLICAS)
    canary = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=100,
        help_text="Percent of the requests for the newest revision; 100 ends the trial.",
    )


class ServiceRollbackSerializer(StrictSerializer):
    """The revision to return to; without one, the one that served before."""

    revision = serializers.IntegerField(required=False, default=None, allow_null=True, min_value=1, max_value=2**31 - 1)


FILE = {"name": "chat", "replicas": {"min": 1, "max": 4}, "template": {"run": 'python3 serve.py --port "$PORT"'}}


@extend_schema_view(list=extend_schema(description="The services that you may see, newest first."))
class ServiceViewSet(ListModelMixin, ResourceViewSet):
    """Inference services."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("service {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = InferenceService.objects.none()
    filterset_class = services.ServiceFilter
    ordering = "-id"
    serializer_class = ServiceSerializer

    def get_queryset(self) -> QuerySet[InferenceService]:
        return services.visible(self.user)

    @extend_schema(
        operation_id="services_create",
        request=ServiceAskedSerializer,
        responses={201: services.ServiceDetail},
        examples=[OpenApiExample("A model with one to four replicas", {"file": FILE}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Makes a service, whose replicas are submitted as you."""
        row = service.make(self.user, self.body(ServiceAskedSerializer)["file"], timezone.now())
        return Response(services.detail(row, self.user), status=201)

    @extend_schema(responses=services.ServiceDetail)
    def retrieve(self, request: Request, number: int) -> Response:
        """A service with its replicas, revisions and last hour; its ETag is what a change needs."""
        return Response(services.detail(self.get_object(), self.user))

    @extend_schema(
        operation_id="services_change",
        request=ServiceChangeSerializer,
        responses={200: services.ServiceDetail},
        parameters=[IF_MATCH],
        examples=[OpenApiExample("Scale it", {"min": 2, "max": 8}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Updates a service with a file, which is rolled out where its replicas are to be others, or scales it. For
        its owner, leads of its project and operators; the file is submitted as the owner, so only the owner changes
        it."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may change this service"))
        taken = ServiceChangeSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        asked, now = taken.validated_data, timezone.now()
        with transaction.atomic():
            self._unchanged(request, row)
            if "file" in asked:
                row = service.change(self.user, row, asked["file"], now)
            if "min" in asked or "max" in asked:
                row = service.scale(row, asked.get("min"), asked.get("max"), now)
            if "canary" in asked:
                row = service.set_canary(row, asked["canary"], now)
        return Response(services.detail(row, self.user))

    @extend_schema(operation_id="services_delete", parameters=[IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a service: it takes no requests any more, and its replicas end."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may delete this service"))
        self._unchanged(request, row)
        service.delete(row, timezone.now())
        return Response(status=204)

    @extend_schema(
        operation_id="services_rollback",
        request=ServiceRollbackSerializer,
        responses={200: services.ServiceDetail},
        examples=[OpenApiExample("To the one before", {}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def rollback(self, request: Request, number: int) -> Response:
        """Returns to the revision that served before, or to the one that is named."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may roll back this service"))
        row = service.roll_back(row, self.body(ServiceRollbackSerializer)["revision"], timezone.now())
        return Response(services.detail(row, self.user))

    def _own(self, said: str) -> InferenceService:
        row: Any = self.get_object()
        owned(self.user, row, _(said))
        return row

    def _unchanged(self, request: Request, row: InferenceService) -> None:
        require_if_match(request)
        unless_changed(request, services.detail(row, self.user))
