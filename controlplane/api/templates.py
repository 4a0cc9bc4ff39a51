"""Templates: job files with parameters."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import Project
from controlplane.accounts.permissions import Permit
from controlplane.api.permissions import permitted
from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.job_templates import parameters, service
from controlplane.job_templates.models import JobTemplate
from controlplane.queries import templates
from controlplane.queries.refusals import Unseen


class TemplateBodySerializer(StrictSerializer):
    """A template. Its job file has places such as ``{{rate}}`` in its texts, one or more for each parameter."""

    title = serializers.CharField(max_length=100)
    description = serializers.CharField(max_length=4000, default="", allow_blank=True)
    parameters = serializers.ListField(child=serializers.DictField(), max_length=parameters.MOST, default=list)
    job = serializers.DictField(help_text="The job file.")


class TemplateFillSerializer(StrictSerializer):
    """Values for parameters, and the project in which the job is to be submitted."""

    set = serializers.DictField(default=dict, help_text="Values by the name of their parameter.")
    project = serializers.CharField(default="", allow_blank=True, max_length=200)


PROJECT = OpenApiParameter("project", str, description="Whose template it is; everybody's without it.")
RATE = {"name": "rate", "type": "number", "default": 0.001, "min": 0, "max": 1}
EXAMPLE = {
    "title": "Train",
    "parameters": [RATE],
    "job": {"run": "python train.py --lr {{rate}}", "time_limit": "1h"},
}


class TemplateViewSet(ResourceViewSet):
    """Templates of job files."""

    noun = gettext_noop("template {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "name", "template", "str"
    examples = {"template": "torchrun"}
    queryset = JobTemplate.objects.none()

    def get_queryset(self) -> QuerySet[JobTemplate]:
        return JobTemplate.objects.none()

    @extend_schema(operation_id="templates_list", parameters=[PROJECT], responses=templates.JobTemplateList)
    def list(self, request: Request) -> Response:
        """The templates that you may see: those of your projects, everybody's, and those that are shipped."""
        return Response(templates.of_user(self.user, request.query_params.get("project", "")))

    @extend_schema(operation_id="templates_read", parameters=[PROJECT], responses=templates.JobTemplate)
    def retrieve(self, request: Request, template: str) -> Response:
        """A template: that of the project, else everybody's."""
        return Response(templates.shown(self._found(template, request.query_params.get("project", ""))))

    @extend_schema(
        operation_id="templates_put",
        parameters=[PROJECT],
        request=TemplateBodySerializer,
        responses={200: templates.JobTemplate, 201: templates.JobTemplate},
        examples=[OpenApiExample("A learning rate", EXAMPLE, request_only=True)],
    )
    def update(self, request: Request, template: str) -> Response:
        """Makes or replaces a template. Those of a project are for its leads and operators, everybody's for operators:
        what others submit from it runs as they."""
        project = self._changed_in(request)
        row, is_new = service.put(self.user, project, template, **self.body(TemplateBodySerializer))
        return Response(templates.shown(row), status=201 if is_new else 200)

    @extend_schema(operation_id="templates_delete", parameters=[PROJECT], responses={204: None})
    def destroy(self, request: Request, template: str) -> Response:
        """Deletes a template that somebody made; jobs that were submitted from it stay."""
        service.delete(self._changed_in(request), template)
        return Response(status=204)

    @extend_schema(
        operation_id="templates_fill",
        request=TemplateFillSerializer,
        responses={200: templates.FilledTemplate},
        examples=[OpenApiExample("Defaults but one", {"set": {"nodes": 2}}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def fill(self, request: Request, template: str) -> Response:
        """The job file with these values and the defaults. It changes nothing: send the file to ``/jobs``, with
        ``dry_run`` to know what it would take."""
        body = self.body(TemplateFillSerializer)
        found = self._found(template, body["project"])
        return Response(templates.FilledTemplate(service.fill(found, body["set"], body["project"])))

    def _found(self, name: str, project: str) -> service.Template:
        found = service.find(self.user, name, project)
        if found is None:
            raise Unseen(_(self.noun).format(name=name[:63]))
        return found

    def _changed_in(self, request: Request) -> Project | None:
        """The project whose templates the user must be allowed to change; None for everybody's."""
        name: Any = request.query_params.get("project", "")
        project = permissions.visible_projects(self.user).filter(name=name).first() if name else None
        if name and project is None:
            raise Unseen(_("project {name}").format(name=name[:63]))
        if not service.may_change(self.user, project):
            permitted(request, Permit.CHANGE_TEMPLATES, _("change templates"))
        return project
