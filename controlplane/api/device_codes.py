"""Signing a program in by a code that a person confirms, in the shape of RFC 8628, and taking its token back."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from django.conf import settings
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import device_codes, guard
from controlplane.accounts.models import Token
from controlplane.api.problem import Problem, Refused
from controlplane.api.resource import Resource, taken


class DeviceAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program asks for; without scopes read and submit. The person reads ``name`` before they confirm."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    scopes: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^(read|submit|admin)$")]], msgspec.Meta(max_length=3)
    ] = []
    days: Annotated[int, msgspec.Meta(ge=1, le=device_codes.MOST_DAYS)] = 90


class DeviceGrant(msgspec.Struct, frozen=True):
    """What the program shows, and how it goes on asking: every ``interval`` seconds, for ``expires_in`` at most."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    interval: int


class DeviceSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret that the program was given with its code."""

    device_code: Annotated[str, msgspec.Meta(max_length=200)]


class IssuedToken(msgspec.Struct, frozen=True):
    """An access token of whoever confirmed. It is told this once."""

    access_token: str
    token_type: str
    user: str
    scopes: list[str]
    expires_at: datetime


class DeviceCodes(Resource):
    """Codes for programs."""

    authentication_classes = []
    permission_classes = [AllowAny]
    largest_body = 4_096

    @extend_schema(
        operation_id="device_codes_create",
        request=DeviceAsk,
        responses={201: DeviceGrant, 400: Problem, 429: Problem},
        auth=[],
    )
    def post(self, request: Request) -> Response:
        """A code for a program to show. A person who is signed in types it at ``verification_uri`` and confirms it."""
        ask = taken(request, DeviceAsk)
        if not ask.name.isprintable() or not ask.name.strip():
            raise Refused(400, "invalid", _("name must be 1 to 60 characters that can be printed"))
        try:
            row, secret = device_codes.begin(
                ask.name.strip(), list(ask.scopes) or ["read", "submit"], ask.days, guard.who(request._request).address
            )
        except device_codes.TooMany:
            detail = _("too many programs of this address wait for a confirmation; try again when theirs have ended")
            raise Refused(429, "too_many", detail, retry_s=60) from None
        where = settings.PUBLIC_URL.rstrip("/") + "/device"
        life_s = round(device_codes.LIFE.total_seconds())
        grant = DeviceGrant(secret, device_codes.shown(row.code), where, life_s, row.interval_s)
        return Response(grant, status=201, headers={"Cache-Control": "no-store"})


class DeviceTokens(Resource):
    """Tokens for programs whose code was confirmed."""

    authentication_classes = []
    permission_classes = [AllowAny]
    largest_body = 4_096

    @extend_schema(
        operation_id="device_tokens_create",
        request=DeviceSecret,
        responses={200: IssuedToken, 400: Problem},
        auth=[],
    )
    def post(self, request: Request) -> Response:
        """The token, once it was confirmed. Until then 400 with the code ``authorization_pending``, or ``slow_down``
        for whoever asks too often; ``access_denied`` and ``expired_token`` are final."""
        found = device_codes.collect(taken(request, DeviceSecret).device_code)
        if found.token is None:
            told = {
                "authorization_pending": _("nobody has confirmed the code yet"),
                "slow_down": _("ask every {seconds} s at most").format(seconds=found.interval_s),
                "access_denied": _("the code was refused"),
                "expired_token": _("the code has expired, or was used; begin anew"),
            }
            raise Refused(400, found.error, told[found.error], retry_s=found.interval_s)
        token = found.token
        issued = IssuedToken(found.secret, "Bearer", token.user.get_username(), list(token.scopes), token.expires_at)
        return Response(issued, headers={"Cache-Control": "no-store"})


class OwnToken(Resource):
    """The token that a request is sent with."""

    permission_classes = [IsAuthenticated]

    @extend_schema(operation_id="token_revoke", responses={204: None, 401: Problem, 409: Problem})
    def delete(self, request: Request) -> Response:
        """Takes back the token that this request carries. It is refused from now on."""
        if not isinstance(request.auth, Token):
            raise Refused(409, "no_token", _("this request carries no access token that could be taken back"))
        request.auth.delete()
        return Response(status=204)
