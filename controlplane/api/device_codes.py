"""Signs a program in by a code that a person confirms, as in RFC 8628, and revokes its token."""

from __future__ import annotations

from django.conf import settings
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import device_codes, guard, service
from controlplane.accounts.models import Token
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet


class DeviceAskSerializer(StrictSerializer):
    """A program's request for a code; default scopes are read and submit. The person sees ``name`` before
    confirming."""

    name = serializers.CharField(max_length=60)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(["read", "submit", "admin"]), default=list, max_length=3
    )
    days = serializers.IntegerField(default=90, min_value=1, max_value=service.MOST_DAYS)


class DeviceGrantSerializer(serializers.Serializer):
    """What the program shows, and how it polls: every ``interval`` seconds, for at most ``expires_in`` seconds."""

    device_code = serializers.CharField()
    user_code = serializers.CharField()
    verification_uri = serializers.CharField()
    expires_in = serializers.IntegerField()
    interval = serializers.IntegerField()


class DeviceSecretSerializer(StrictSerializer):
    """The secret that the program received with its code."""

    device_code = serializers.CharField(max_length=200)


class IssuedTokenSerializer(serializers.Serializer):
    """An access token of the user who confirmed. It is returned once."""

    access_token = serializers.CharField()
    token_type = serializers.CharField()
    user = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField()


class DeviceCodeViewSet(SingleViewSet):
    """Codes for programs, and the tokens of confirmed codes."""

    authentication_classes = []
    permission_classes = [AllowAny]
    largest_body = 4_096
    serializer_class = DeviceGrantSerializer

    def is_idempotent(self, request: Request) -> bool:
        return False  # keys belong to users, and nobody is signed in here

    @extend_schema(
        request=DeviceAskSerializer,
        responses={201: DeviceGrantSerializer},
        auth=[],
        examples=[OpenApiExample("A program", {"name": "yard on a laptop"}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Creates a code for a program to show. A signed-in person enters it at ``verification_uri`` and confirms
        it."""
        ask = self.body(DeviceAskSerializer)
        if not ask["name"].isprintable():
            raise RequestRefused(400, "invalid", _("name must be 1 to 60 characters that can be printed"))
        address = guard.who(request._request).address
        try:
            row, secret = device_codes.begin(ask["name"], ask["scopes"] or ["read", "submit"], ask["days"], address)
        except device_codes.TooMany:
            detail = _("too many programs of this address wait for a confirmation; try again when theirs have ended")
            raise RequestRefused(429, "too_many", detail, retry_s=60) from None
        grant = {
            "device_code": secret,
            "user_code": device_codes.shown(row.code),
            "verification_uri": settings.PUBLIC_URL.rstrip("/") + "/device",
            "expires_in": round(device_codes.LIFE.total_seconds()),
            "interval": row.interval_s,
        }
        return Response(grant, status=201, headers={"Cache-Control": "no-store"})

    @extend_schema(
        operation_id="device_tokens_create",
        request=DeviceSecretSerializer,
        responses={200: IssuedTokenSerializer},
        auth=[],
        examples=[OpenApiExample("A code", {"device_code": "yard_dc_0000"}, request_only=True)],
    )
    @action(detail=False, methods=["post"])
    def token(self, request: Request) -> Response:
        """The token, once the code is confirmed. Until then 400 with the code ``authorization_pending``, or
        ``slow_down`` if polled too often; ``access_denied`` and ``expired_token`` are final."""
        found = device_codes.collect(self.body(DeviceSecretSerializer)["device_code"])
        if found.token is None:
            told = {
                "authorization_pending": _("nobody has confirmed the code yet"),
                "slow_down": _("ask every {seconds} s at most").format(seconds=found.interval_s),
                "access_denied": _("the code was refused"),
                "expired_token": _("the code has expired, or was used; begin anew"),
            }
            raise RequestRefused(400, found.error, told[found.error], retry_s=found.interval_s)
        token = found.token
        issued = {
            "access_token": found.secret,
            "token_type": "Bearer",
            "user": token.user.get_username(),
            "scopes": list(token.scopes),
            "expires_at": token.expires_at,
        }
        return Response(issued, headers={"Cache-Control": "no-store"})


class OwnTokenViewSet(SingleViewSet):
    """The access token of the request."""

    permission_classes = [IsAuthenticated]

    @extend_schema(operation_id="token_revoke", responses={204: None})
    def destroy(self, request: Request) -> Response:
        """Revokes the token that this request carries."""
        if not isinstance(request.auth, Token):
            raise RequestRefused(409, "no_token", _("this request carries no access token that could be taken back"))
        service.revoke_token(request.auth.user, request.auth.pk)
        return Response(status=204)
