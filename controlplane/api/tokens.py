"""The access tokens of whoever asks: listed, made and revoked."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import service
from controlplane.accounts.models import Token, User
from controlplane.api.pagination import WholeList
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import ResourceViewSet


class OwnTokenSerializer(serializers.ModelSerializer):
    """A token without its secret; ``is_current`` is the one that the request carries."""

    scopes = serializers.ListField(child=serializers.CharField())
    is_current = serializers.SerializerMethodField()

    class Meta:
        model = Token
        fields = ["id", "name", "scopes", "created_at", "expires_at", "last_used_at", "is_current"]

    @extend_schema_field(bool)
    def get_is_current(self, token: Token) -> bool:
        carried = self.context["request"].auth
        return isinstance(carried, Token) and carried.pk == token.pk


class TokenMadeSerializer(OwnTokenSerializer):
    """A new token with its secret, which is returned once."""

    secret = serializers.CharField()

    class Meta(OwnTokenSerializer.Meta):
        fields = [*OwnTokenSerializer.Meta.fields, "secret"]


class TokenAskSerializer(StrictSerializer):
    """A token to make. A token makes none that may do more than itself, or is valid for longer; without ``days`` it is
    valid for 90 days, or as long as the token that makes it."""

    name = serializers.CharField(max_length=60)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(["read", "submit", "admin"]), default=lambda: ["read", "submit"], min_length=1,
        max_length=3,
    )  # fmt: skip
    days = serializers.IntegerField(default=None, allow_null=True, min_value=1, max_value=service.MOST_DAYS)


class MakesTokens(ResourceViewSet):
    """Makes and revokes access tokens. A token makes and revokes none that may do more than itself, and makes none
    that is valid for longer."""

    def is_idempotent(self, request: Request) -> bool:
        return False  # the answer has a secret, and answers are stored with their keys

    def made(self, user: User) -> Response:
        """The answer with a new token of this user, as the body asks."""
        ask = self.body(TokenAskSerializer)
        name = ask["name"].strip()
        if not name or not name.isprintable():
            raise RequestRefused(400, "invalid", _("name must be 1 to 60 characters that can be printed"))
        self._refuse_beyond(self._held(service.scopes_of(user)), ask["scopes"])
        life = self._life(ask["days"])
        with transaction.atomic():
            # One at a time, so that together they do not make more than the most.
            User.objects.select_for_update(of=("self",), no_key=True).get(pk=user.pk)
            if user.tokens.count() >= service.MOST_TOKENS:
                detail = _("{user} has {most} tokens; revoke one first")
                detail = detail.format(user=user.get_username(), most=service.MOST_TOKENS)
                raise RequestRefused(409, "too_many", detail)
            token, secret = service.make_token(user, name, scopes=ask["scopes"], life=life)
        made = OwnTokenSerializer(token, context=self.get_serializer_context()).data
        return Response({**made, "secret": secret}, status=201, headers={"Cache-Control": "no-store"})

    def revoked(self, token: Token) -> Response:
        """The answer after this token is revoked."""
        self._refuse_beyond(self._held(token.scopes), token.scopes)
        service.revoke_token(token.user, token.pk)
        return Response(status=204)

    def _held(self, scopes: list[str]) -> list[str]:
        """Those of these scopes that this request has itself."""
        carried: Any = self.request.auth
        return [scope for scope in scopes if not isinstance(carried, Token) or scope in carried.scopes]

    def _refuse_beyond(self, held: list[str], scopes: list[str]) -> None:
        if not set(scopes) <= set(held):
            detail = _("this needs the scopes {scopes}; with what you have signed in by, you have {held}").format(
                scopes=", ".join(scopes), held=", ".join(held) or _("nothing")
            )
            raise RequestRefused(403, "scope_missing", detail)

    def _life(self, days: int | None) -> timedelta:
        """How long a new token is valid; refuses one that outlives the token of this request."""
        life = service.TOKEN_LIFE if days is None else timedelta(days=days)
        carried: Any = self.request.auth
        if not isinstance(carried, Token):
            return life
        left = carried.expires_at - timezone.now()
        if days is not None and life > left:
            detail = _(
                "a token makes none that is valid for longer than itself; this one is valid until {until}"
            ).format(until=carried.expires_at.isoformat(timespec="seconds"))
            raise RequestRefused(403, "outlives", detail)
        return min(life, left)


TOKEN_ASK: Final = OpenApiExample(
    "For a script", {"name": "nightly", "scopes": ["read"], "days": 30}, request_only=True
)


@extend_schema_view(list=extend_schema(description="Your access tokens, newest first, without their secrets."))
class TokenViewSet(ListModelMixin, MakesTokens):
    """Your access tokens, newest first, without their secrets."""

    noun = gettext_noop("access token {name}")
    lookup_field = "id"
    lookup_value_converter = "uuid"
    largest_body = 4_096
    examples = {"id": "01990000-0000-7000-8000-000000000000"}
    queryset = Token.objects.none()
    serializer_class = OwnTokenSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[Token]:
        return Token.objects.filter(user=self.user).order_by("-created_at")

    @extend_schema(
        operation_id="tokens_create",
        request=TokenAskSerializer,
        responses={201: TokenMadeSerializer},
        examples=[TOKEN_ASK],
    )
    def create(self, request: Request) -> Response:
        """Makes a token, and returns its secret this once. ``Idempotency-Key`` has no effect: answers are stored with
        their keys, secrets are not."""
        return self.made(self.user)

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def destroy(self, request: Request, id: uuid.UUID) -> Response:  # noqa: A002 - the word of the address
        """Revokes a token at once. A token revokes none that may do more than itself."""
        return self.revoked(self.get_object())
