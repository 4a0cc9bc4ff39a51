"""The viewset that all resources of the API build on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.utils.translation import gettext as _
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.versioning import NamespaceVersioning
from rest_framework.viewsets import GenericViewSet

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.body import LARGEST_FILE, BoundedJSON
from controlplane.api.filters import StrictFilterBackend
from controlplane.api.mixins import ConditionalMixin, IdempotentCreateMixin
from controlplane.api.pagination import KeysetPagination
from controlplane.api.permissions import Permitted, Scoped
from controlplane.api.renderers import NamedJSON, OneAnswer
from controlplane.api.resource import signed_in
from controlplane.api.schema import RouteSchema
from controlplane.queries.refusals import Unseen


class ResourceViewSet(ConditionalMixin, IdempotentCreateMixin, GenericViewSet):
    """A resource of the API; the mixins of Django REST framework say what can be done with it.

    ``scope`` is what a token needs for anything but reading. ``permits`` are the permissions that actions need, each
    with what is done in words that follow *only the role operator may*. ``noun`` says what was not found. ``examples``
    are parts of addresses, as the description of the API shows them.
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

    def get_object(self) -> Any:
        """The row that the address names, among those that this user may see; raises 404 by its ``noun``."""
        name = self.kwargs[self.lookup_field]
        row = self.get_queryset().filter(**{self.lookup_field: name}).first()
        if row is None:
            raise Unseen(_(self.noun).format(name=name[:63]))
        return row

    @property
    def user(self) -> User:
        """Who asks."""
        return signed_in(self.request)

    def body(self, serializer: type[Serializer]) -> dict[str, Any]:
        """The body as this serializer takes it; raises 400 with where it differs."""
        taken = serializer(data=self.request.data, context=self.get_serializer_context())
        taken.is_valid(raise_exception=True)
        return dict(taken.validated_data)

    def shown(self, row: Any, status: int = 200) -> Response:
        """The answer that shows this row."""
        return Response(self.get_serializer(row).data, status=status)
