"""Projects that the user may see, with their members."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import audit, members, permissions, secrets
from controlplane.accounts import models as rows
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.pagination import WholeList
from controlplane.api.permissions import permitted
from controlplane.api.problem import Problem, RequestRefused, not_found
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs.section import FieldError
from controlplane.notifications import tried_deliveries, webhook_delivery, webhooks
from controlplane.notifications.models import TriedDelivery, Webhook
from controlplane.queries import retention as kept
from controlplane.queries import secrets as secret_rows
from controlplane.queries import webhooks as webhook_rows
from controlplane.queries.projects import Project, shown
from controlplane.retention import rules
from controlplane.retention.models import Override


class SecretValueSerializer(StrictSerializer):
    """A value: text of at most 48 KiB without NUL."""

    value = serializers.CharField(allow_blank=True, trim_whitespace=False)


class RetentionChoiceSerializer(StrictSerializer):
    """A project's choice: days by kind, null for the cluster's default; absent kinds stay. ``log_bytes`` is the most
    bytes of its logs, null for the default."""

    days = serializers.DictField(child=serializers.IntegerField(allow_null=True), default=dict)
    log_bytes = serializers.IntegerField(allow_null=True, required=False)


class ProjectSettingsSerializer(editing.EditSerializer):
    """What people set of a project; its members have addresses of their own."""

    class Meta:
        model = rows.Project
        fields = ["name", "weight", "description"]


class RoleSerializer(StrictSerializer):
    """A role in a project."""

    role = serializers.ChoiceField(rows.Member.Role.choices)


class MemberSerializer(serializers.ModelSerializer):
    """A person's role in a project."""

    user = serializers.CharField(source="user.username")

    class Meta:
        model = rows.Member
        fields = read_only_fields = ["user", "role"]


class WebhookChoiceSerializer(StrictSerializer):
    """Where to, in which form, and which states of jobs are told: those in which a job ends, if none are named. One
    that is not ``active`` is told nothing. What is not named of ``active``, ``budgets`` and ``secret`` stays."""

    url = serializers.CharField(max_length=500)
    format = serializers.ChoiceField(
        Webhook.Format.values, default="cloudevents", help_text="What is sent: CloudEvents, or messages for a chat."
    )
    states = serializers.ListField(child=serializers.CharField(max_length=20), default=list, max_length=20)
    active = serializers.BooleanField(required=False, source="is_active")
    budgets = serializers.BooleanField(
        required=False, help_text="Whether it is told that a budget of the project is used, by 80 and by 100 %."
    )
    secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=webhooks.LONGEST_SECRET,
        write_only=True,
        help_text="With which the robot of a Feishu or DingTalk group checks signatures; empty for none.",
    )


class ProjectSerializer(ReadModelSerializer):
    class Meta:
        model = Project
        read = shown


@extend_schema_view(retrieve=extend_schema(description="A project by its name."))
class ProjectViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """The projects that you may see."""

    permits = {
        "create": (Permit.ADD_PROJECTS, gettext_noop("add a project")),
        "partial_update": (Permit.CHANGE_PROJECTS, gettext_noop("change a project")),
        "destroy": (Permit.DELETE_PROJECTS, gettext_noop("delete a project")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("project {name}")
    examples = {
        "name": "default",
        "secret": "HF_TOKEN",
        "user": "ann",
        "webhook": "chat",
        "event": str(uuid.UUID(int=1)),
    }
    queryset = rows.Project.objects.none()
    serializer_class = ProjectSerializer
    pagination_class = WholeList

    @extend_schema(
        operation_id="projects_create",
        request=ProjectSettingsSerializer,
        responses={201: ProjectSerializer},
        examples=[OpenApiExample("A team", {"name": "vision", "description": "images"}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Adds a project. For accountants."""
        return self.shown(editing.create(ProjectSettingsSerializer, request.data), status=201)

    @extend_schema(operation_id="projects_settings", responses=ProjectSettingsSerializer)
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What is set of a project; its ETag is what a change needs."""
        return Response(editing.settings_of(self.get_object(), ProjectSettingsSerializer))

    @extend_schema(
        operation_id="projects_change",
        request=ProjectSettingsSerializer,
        responses={200: ProjectSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("A larger share", {"weight": 2}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a project, with ``If-Match`` of its settings as they were read. For accountants."""
        return self.shown(editing.change(request, self.get_object(), ProjectSettingsSerializer))

    @extend_schema(
        operation_id="projects_delete",
        parameters=[editing.IF_MATCH],
        responses={204: None},
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a project that never had a job. For accountants."""
        editing.delete(request, self.get_object(), ProjectSettingsSerializer)
        return Response(status=204)

    @extend_schema(
        operation_id="members_put",
        request=RoleSerializer,
        responses={200: MemberSerializer, 201: MemberSerializer, 404: Problem},
        examples=[OpenApiExample("A member", {"role": "member"}, request_only=True)],
    )
    @action(detail=True, methods=["put"], url_path="members/<str:user>")
    def put_member(self, request: Request, name: str, user: str) -> Response:
        """Gives a person a role. Leads give viewer and member, accountants any; nobody changes their own."""
        row, is_new = members.give(self.user, self.get_object(), user, self.body(RoleSerializer)["role"])
        return Response(MemberSerializer(row).data, status=201 if is_new else 200)

    @extend_schema(operation_id="members_delete", responses={204: None})
    @put_member.mapping.delete
    def delete_member(self, request: Request, name: str, user: str) -> Response:
        """Takes a person's role away. Their jobs stay, and what runs goes on."""
        members.take(self.user, self.get_object(), user)
        return Response(status=204)

    @extend_schema(operation_id="secrets_list", responses=secret_rows.SecretList)
    @action(detail=True, url_path="secrets")
    def list_secrets(self, request: Request, name: str) -> Response:
        """The secrets of a project, without values."""
        return Response(secret_rows.of_project(self.get_object(), self.user))

    @extend_schema(
        operation_id="secrets_put",
        request=SecretValueSerializer,
        responses={200: secret_rows.Secret, 201: secret_rows.Secret, 503: Problem},
        examples=[OpenApiExample("A token", {"value": "hf_..."}, request_only=True)],
    )
    @action(
        detail=True,
        methods=["put"],
        url_path="secrets/<str:secret>",
        largest_body=secrets.LARGEST * 6 + 1024,  # as many bytes as JSON may make of a value
    )
    def put_secret(self, request: Request, name: str, secret: str) -> Response:
        """Creates a secret or sets its value, which stages that start later get. Setting the same value again changes
        nothing. For members and leads of the project and operators."""
        project, value = self.get_object(), self.body(SecretValueSerializer)["value"]
        row, is_new = secrets.put(self.user, project, secret, value)
        return Response(secret_rows.shown(row), status=201 if is_new else 200)

    @extend_schema(operation_id="secrets_delete", responses={204: None})
    @put_secret.mapping.delete
    def delete_secret(self, request: Request, name: str, secret: str) -> Response:
        """Deletes a secret. Stages that name it wait until it is set again. For leads of the project and operators."""
        secrets.delete(self.user, self.get_object(), secret)
        return Response(status=204)

    @extend_schema(operation_id="projects_retention", responses=kept.ProjectRetention)
    @action(detail=True, url_path="retention")
    def show_retention(self, request: Request, name: str) -> Response:
        """How long the records of a project are kept, and its own choices."""
        return Response(kept.of_project(self.get_object()))

    @extend_schema(
        operation_id="projects_retention_choose",
        request=RetentionChoiceSerializer,
        responses={200: kept.ProjectRetention},
        examples=[OpenApiExample("Logs for two weeks", {"days": {"logs": 14}}, request_only=True)],
    )
    @show_retention.mapping.put
    def choose_retention(self, request: Request, name: str) -> Response:
        """Sets how long records are kept. A lead may shorten it; to keep records longer than the default needs a
        permission."""
        project, body = self.get_object(), self.body(RetentionChoiceSerializer)
        if not permissions.led(self.user).filter(pk=project.pk).exists():
            permitted(request, Permit.CHANGE_RETENTION, _("change how long the records of a project are kept"))
        with transaction.atomic():
            before = _chosen(project)
            try:
                chosen = rules.choose(project, body["days"], body.get("log_bytes", ...))
            except rules.InvalidChoice as error:
                at = FieldError(f"/days/{error.kind}", str(error), "invalid")
                raise RequestRefused(422, "invalid", str(error), errors=[at]) from None
            for row in chosen:
                if rules.lengthens(row.kind, row.days, row.log_bytes):
                    deed = _("keep records of a project longer than those of others")
                    permitted(request, Permit.CHANGE_RETENTION, deed)
                row.save()
            audit.record("project.retention", project, before=before, after=_chosen(project))
        return Response(kept.of_project(project))

    @extend_schema(operation_id="webhooks_list", responses=webhook_rows.WebhookList)
    @action(detail=True, url_path="webhooks")
    def list_webhooks(self, request: Request, name: str) -> Response:
        """The webhooks of a project, without keys. For leads of the project and operators."""
        return Response(webhook_rows.of_project(self._with_webhooks()))

    @extend_schema(
        operation_id="webhooks_put",
        request=WebhookChoiceSerializer,
        responses={200: webhook_rows.NewWebhook, 201: webhook_rows.NewWebhook},
        examples=[
            OpenApiExample("Failures", {"url": "https://example.org/hook", "states": ["FAILED"]}, request_only=True)
        ],
    )
    @action(detail=True, methods=["put"], url_path="webhooks/<str:webhook>")
    def put_webhook(self, request: Request, name: str, webhook: str) -> Response:
        """Creates a webhook, with a key that is shown this once, or changes its address, format and states. For leads
        of the project and operators."""
        project, body = self._with_webhooks(), self.body(WebhookChoiceSerializer)
        body["states"] = body["states"] or webhooks.USUAL
        body["kind"] = body.pop("format")
        row, key = webhooks.put(self.user, project, webhook, **body)
        return Response(webhook_rows.NewWebhook(webhook_rows.shown(row), key), status=201 if key else 200)

    @extend_schema(operation_id="webhooks_retrieve", responses=webhook_rows.Webhook)
    @put_webhook.mapping.get
    def show_webhook(self, request: Request, name: str, webhook: str) -> Response:
        """A webhook, without its key. For leads of the project and operators."""
        return Response(webhook_rows.shown(self._webhook(webhook)))

    @extend_schema(
        operation_id="webhooks_change",
        request=WebhookChoiceSerializer,
        responses={200: webhook_rows.Webhook, 404: Problem},
        examples=[OpenApiExample("Switch it off", {"active": False}, request_only=True)],
    )
    @put_webhook.mapping.patch
    def change_webhook(self, request: Request, name: str, webhook: str) -> Response:
        """Changes what is named of a webhook, or switches it off: then it is told nothing, and what happens meanwhile
        is not told later. For leads of the project and operators."""
        row = self._webhook(webhook)
        taken = WebhookChoiceSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        given = dict(taken.validated_data)
        if "format" in given:
            given["kind"] = given.pop("format")
        return Response(webhook_rows.shown(webhooks.change(self.user, row, **given)))

    @extend_schema(
        operation_id="webhooks_test",
        request=None,
        responses={200: webhook_rows.WebhookTest, 404: Problem},
    )
    @action(detail=True, methods=["post"], url_path="webhooks/<str:webhook>/test")
    def test_webhook(self, request: Request, name: str, webhook: str) -> Response:
        """Sends one event now, and tells what was answered; once in ten seconds. For leads of the project and
        operators."""
        return Response(webhook_rows.tested(webhook_delivery.test(self._webhook(webhook))))

    @extend_schema(operation_id="webhooks_deliveries", responses=webhook_rows.TriedDeliveryList)
    @action(detail=True, url_path="webhooks/<str:webhook>/deliveries")
    def list_deliveries(self, request: Request, name: str, webhook: str) -> Response:
        """The newest fifty deliveries that were tried in the last seven days, and how. For leads of the project and
        operators."""
        return Response(webhook_rows.tried_of(self._webhook(webhook)))

    @extend_schema(operation_id="webhooks_resend", request=None, responses={202: None, 404: Problem})
    @action(detail=True, methods=["post"], url_path="webhooks/<str:webhook>/deliveries/<uuid:event>/resend")
    def resend_delivery(self, request: Request, name: str, webhook: str, event: uuid.UUID) -> Response:
        """Has a delivery that failed sent again within seconds, with the same id. For leads of the project and
        operators."""
        row = self._webhook(webhook)
        try:
            tried_deliveries.resend(row, event)
        except TriedDelivery.DoesNotExist:
            raise not_found(_("delivery {name}").format(name=event)) from None
        return Response(status=202)

    @extend_schema(operation_id="webhooks_delete", responses={204: None})
    @put_webhook.mapping.delete
    def delete_webhook(self, request: Request, name: str, webhook: str) -> Response:
        """Deletes a webhook, with what it was still to be told. For leads of the project and operators."""
        webhooks.delete(self._with_webhooks(), webhook)
        return Response(status=204)

    def _webhook(self, name: str) -> Webhook:
        """The webhook of this name of the project in the address; raises 404 if there is none."""
        row = Webhook.objects.filter(project=self._with_webhooks(), name=name).select_related("project").first()
        if row is None:
            raise not_found(_("webhook {name}").format(name=name[:63]))
        return row

    def _with_webhooks(self) -> rows.Project:
        """The project, whose webhooks the user must be allowed to change."""
        project: rows.Project = self.get_object()
        if not webhooks.may_change(self.user, project):
            permitted(self.request, Permit.CHANGE_WEBHOOKS, _("see and change webhooks of a project"))
        return project

    def get_queryset(self) -> QuerySet[rows.Project]:
        return permissions.visible_projects(self.user)


def _chosen(project: rows.Project) -> dict[str, object]:
    found = Override.objects.filter(project=project)
    return {row.kind: {"days": row.days, "log_bytes": row.log_bytes} for row in found}
