"""The base viewset of all resources of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.decorators import action
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.versioning import NamespaceVersioning
from rest_framework.viewsets import GenericViewSet

from controlplane.accounts.models import Token, User
from controlplane.accounts.permissions import Permit
from controlplane.api.body import LARGEST_FILE, BoundedJSON
from controlplane.api.filters import StrictFilterBackend
from controlplane.api.mixins import ConditionalMixin, IdempotentCreateMixin
from controlplane.api.pagination import KeysetPagination
from controlplane.api.permissions import Permitted, Scoped, signed_in
from controlplane.api.renderers import NamedJSON, OneAnswer
from controlplane.api.schema import RouteSchema
from controlplane.api.serializers import ReasonSerializer
from controlplane.queries.cursor import Page, page_of
from controlplane.queries.refusals import Unseen

LONGEST_REASON = 200
WHY = OpenApiExample("Why", {"reason": "the fan is to be changed"}, request_only=True)


class NameAndTypes(SimpleMetadata):
    """Answers OPTIONS with name, description and media types; bodies are described by ``openapi.yaml``."""

    def determine_actions(self, request: Request, view: Any) -> dict[str, Any]:
        return {}


class ResourceViewSet(ConditionalMixin, IdempotentCreateMixin, GenericViewSet):
    """A resource of the API; the mixins of Django REST framework add its operations.

    ``scope`` is the token's scope for anything but reading. ``permits`` are the permissions that actions need, each
    with the action in words that follow *only the role operator may*. ``noun`` is the resource in error messages.
    ``examples`` are parts of addresses for the description of the API.
    """

    scope = "submit"
    noun = ""
    examples: ClassVar[Mapping[str, str]] = {}
    permits: ClassVar[Mapping[str, tuple[Permit, str]]] = {}
    largest_body = LARGEST_FILE
    lookup_field = "name"
    schema = RouteSchema()
    permission_classes = [IsAuthenticated, Scoped, Permitted]
    parser_classes: Sequence[Any] = [BoundedJSON]
    renderer_classes: Sequence[Any] = [NamedJSON]
    filter_backends: Sequence[Any] = [StrictFilterBackend]
    pagination_class: Any = KeysetPagination
    versioning_class = NamespaceVersioning
    content_negotiation_class = OneAnswer
    metadata_class = NameAndTypes

    def get_object(self) -> Any:
        """The row in the address, among those that this user may see; raises 404 with ``noun``."""
        name = self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        row = self.get_queryset().filter(**{self.lookup_field: name}).first()
        if row is None:
            raise Unseen(_(self.noun).format(name=str(name)[:63]))
        return row

    @property
    def user(self) -> User:
        """The requesting user."""
        return signed_in(self.request)

    @property
    def access_token(self) -> Token | None:
        """The access token that the request carries; None if the user signed in to the pages."""
        return self.request.auth if isinstance(self.request.auth, Token) else None

    def body(self, serializer: type[Serializer]) -> dict[str, Any]:
        """The body, validated by this serializer; raises 400 with the invalid fields."""
        taken = serializer(data=self.request.data, context=self.get_serializer_context())
        taken.is_valid(raise_exception=True)
        return dict(taken.validated_data)

    def asked(self, serializer: type[Serializer]) -> dict[str, Any]:
        """The query parameters, validated by this serializer; raises 400 for an unknown or invalid one."""
        taken = serializer(data=self.request.query_params.dict(), context=self.get_serializer_context())
        taken.is_valid(raise_exception=True)
        return dict(taken.validated_data)

    def shown(self, row: Any, status: int = 200) -> Response:
        """The response that shows this row."""
        return Response(self.get_serializer(row).data, status=status)

    def page(self, rows: QuerySet, order: str, shown: Callable[[list[Any]], list[Any]]) -> Response:
        """One page of rows that belong to the row in the address."""
        found, links = page_of(rows, order, self.request.path, self.request.query_params.dict())
        return Response(Page(shown(found), **links))

    def act(self, act: Callable[[Any, str, str], object]) -> Response:
        """Apply ``act`` to the row in the address, and answer with its new state. ``act`` takes the row, the user's
        name and the reason."""
        reason = self.body(ReasonSerializer)["reason"].strip()
        act(self.get_object(), self.user.get_username(), reason[:LONGEST_REASON])
        return self.shown(self.get_object())


def reasoned_action(method: Callable[..., Response]) -> Callable[..., Response]:
    """An action at the end of a row's address, whose body may have a reason."""
    described = extend_schema(request=ReasonSerializer, examples=[WHY])
    return described(action(detail=True, methods=["post"])(method))


class SingleViewSet(ResourceViewSet):
    """A resource of which there is one; its address has no name."""

    pagination_class = None
    filter_backends = []
