"""Authentication: an access token in the Authorization header, or a browser's session with its CSRF token."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.accounts import service
from controlplane.accounts.models import Token, User


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer yard_...``. A revoked or expired token is refused at once."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        scheme, _space, secret = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        token = service.token_of(secret.strip().decode("latin-1"))
        if token is None:
            raise AuthenticationFailed(_("this access token is unknown, revoked or expired"))
        service.touch(token)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="switchyard"'


class BrowserAuthentication(SessionAuthentication):
    """The signed-in browser. Requests that change something must carry the CSRF token in ``X-CSRFToken``."""


class TokenScheme(OpenApiAuthenticationExtension):
    """The description of the token in the schema."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "An access token: yard_..."}


class BrowserScheme(OpenApiAuthenticationExtension):
    """The description of the browser's session in the schema."""

    target_class = BrowserAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "yard_session"}
