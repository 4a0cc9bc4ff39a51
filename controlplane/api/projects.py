"""Projects that the asking user may know of, with their members."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from controlplane.accounts import models as rows
from controlplane.accounts import permissions
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries.projects import Project, shown


class ProjectSerializer(ReadModelSerializer):
    class Meta:
        model = Project
        read = shown


@extend_schema_view(retrieve=extend_schema(description="A project by its name."))
class ProjectViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """The projects that you may know of."""

    noun = gettext_noop("project {name}")
    examples = {"name": "default"}
    queryset = rows.Project.objects.none()
    serializer_class = ProjectSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[rows.Project]:
        return permissions.visible_projects(self.user)
