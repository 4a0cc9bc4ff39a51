"""Events of all jobs that the user may see."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs import models as rows
from controlplane.queries import events


class JobEventSerializer(ReadModelSerializer):
    class Meta:
        model = events.JobEvent
        read = events.shown


@extend_schema_view(list=extend_schema(description="What happened, newest first."))
class EventViewSet(ListModelMixin, ResourceViewSet):
    """Events of all jobs."""

    queryset = rows.Event.objects.none()
    filterset_class = events.EventFilter
    ordering = "-id"
    serializer_class = JobEventSerializer

    def get_queryset(self) -> QuerySet[rows.Event]:
        return events.visible(self.user).select_related("job")
