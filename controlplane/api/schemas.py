"""The JSON Schema of the job file, for editors."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.jobs import file_schema


class JobSchemaViewSet(SingleViewSet):
    """What a job file may say, as a JSON Schema. It names nothing of this installation and needs no sign-in."""

    permission_classes = [AllowAny]

    @extend_schema(operation_id="job_schema", auth=[], responses=OpenApiTypes.OBJECT)
    def retrieve(self, request: Request) -> Response:
        """The JSON Schema of the job file (draft 2020-12)."""
        response = Response(file_schema.schema(settings.PUBLIC_URL.rstrip("/") + file_schema.PATH))
        response["Cache-Control"] = "public, max-age=3600"
        return response
