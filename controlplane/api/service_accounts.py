"""Service accounts of projects, and their access tokens."""

from __future__ import annotations

import uuid

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions, service_accounts
from controlplane.accounts.models import User
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.editing import IF_MATCH
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.pagination import WholeList
from controlplane.api.problem import Problem
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.tokens import TOKEN_ASK, MakesTokens, OwnTokenSerializer, TokenAskSerializer, TokenMadeSerializer
from controlplane.queries import service_accounts as read
from controlplane.queries.refusals import Unseen


class ServiceAccountSerializer(ReadModelSerializer):
    class Meta:
        model = read.ServiceAccount
        read = read.shown


class NewServiceAccountSerializer(StrictSerializer):
    """A service account to make; its full name is ``name@project``."""

    name = serializers.CharField(max_length=63)
    project = serializers.CharField(max_length=63)
    role = serializers.ChoiceField(service_accounts.CHOICES, default="member")
    description = serializers.CharField(max_length=service_accounts.LONGEST_DESCRIPTION, default="", allow_blank=True)


class ServiceAccountChangeSerializer(StrictSerializer):
    """What changes of a service account; what is absent stays."""

    role = serializers.ChoiceField(service_accounts.CHOICES, required=False)
    is_active = serializers.BooleanField(required=False)
    description = serializers.CharField(
        max_length=service_accounts.LONGEST_DESCRIPTION, required=False, allow_blank=True
    )


MINE = "The service accounts of the projects that you lead, by name."


@extend_schema_view(
    list=extend_schema(description=MINE), retrieve=extend_schema(description="A service account by its full name.")
)
class ServiceAccountViewSet(ListModelMixin, RetrieveModelMixin, MakesTokens):
    """The service accounts of the projects that you lead, by name."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("service account {name}")
    largest_body = 4_096
    examples = {"name": "ci@default", "token": "01990000-0000-7000-8000-000000000000"}
    queryset = User.objects.none()
    serializer_class = ServiceAccountSerializer
    pagination_class = WholeList
    lookup_field, lookup_url_kwarg = "username", "name"

    def is_idempotent(self, request: Request) -> bool:
        return bool(self.action == "create")  # the other answers have secrets

    def get_queryset(self) -> QuerySet[User]:
        return service_accounts.manageable(self.user).order_by("username")

    @extend_schema(
        operation_id="service_accounts_create",
        request=NewServiceAccountSerializer,
        responses={201: ServiceAccountSerializer, 404: Problem},
        examples=[OpenApiExample("A CI", {"name": "ci", "project": "default"}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Makes a service account, viewer or member of its project. For leads of the project."""
        ask = self.body(NewServiceAccountSerializer)
        project = permissions.visible_projects(self.user).filter(name=ask["project"]).first()
        if project is None:
            raise Unseen(_("project {name}").format(name=ask["project"]))
        row = service_accounts.create(self.user, project, ask["name"], ask["role"], ask["description"])
        return self.shown(row, status=201)

    @extend_schema(
        operation_id="service_accounts_change",
        request=ServiceAccountChangeSerializer,
        responses={200: ServiceAccountSerializer},
        parameters=[IF_MATCH],
        examples=[OpenApiExample("Disabled", {"is_active": False}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a service account. The tokens of an inactive one are refused at once; its jobs go on."""
        row = self._as_read()
        service_accounts.change(self.user, row, **self.body(ServiceAccountChangeSerializer))
        return self.shown(row)

    @extend_schema(
        operation_id="service_accounts_delete",
        parameters=[IF_MATCH],
        responses={204: None},
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a service account that never had a job, with its tokens."""
        service_accounts.delete(self._as_read())
        return Response(status=204)

    @extend_schema(operation_id="service_accounts_tokens", responses=OwnTokenSerializer(many=True))
    @action(detail=True, url_path="tokens")
    def list_tokens(self, request: Request, name: str) -> Response:
        """The tokens of a service account, newest first, without their secrets."""
        tokens = self.get_object().tokens.order_by("-created_at")
        return Response({"results": OwnTokenSerializer(tokens, many=True, context=self.get_serializer_context()).data})

    @extend_schema(
        operation_id="service_accounts_tokens_create",
        request=TokenAskSerializer,
        responses={201: TokenMadeSerializer},
        examples=[TOKEN_ASK],
    )
    @list_tokens.mapping.post
    def make_token(self, request: Request, name: str) -> Response:
        """Makes a token of a service account, and returns its secret this once."""
        return self.made(self.get_object())

    @extend_schema(operation_id="service_accounts_tokens_revoke", responses={204: None})
    @action(detail=True, methods=["delete"], url_path="tokens/<uuid:token>")
    def revoke_token(self, request: Request, name: str, token: uuid.UUID) -> Response:
        """Revokes a token of a service account at once."""
        row = self.get_object().tokens.filter(pk=token).first()
        if row is None:
            raise Unseen(_("access token {name}").format(name=token))
        return self.revoked(row)

    def _as_read(self) -> User:
        """The account, which must be as the client read it."""
        require_if_match(self.request)
        row: User = self.get_object()
        unless_changed(self.request, self.get_serializer(row).data)
        return row
