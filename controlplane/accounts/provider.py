"""allauth's OpenID Connect with bounded claims.

allauth finds this module by its name, in each installed application.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from django.conf import settings
from django.http import HttpRequest

LONGEST: Final = {
    "sub": 191,
    "email": 254,
    "preferred_username": 150,
    "name": 150,
    "given_name": 150,
    "family_name": 150,
}
MOST_GROUPS, LONGEST_GROUP = 1_000, 200


def bounded(claims: Mapping[str, Any], groups_claim: str) -> dict[str, Any]:
    """Return the claims used here, with checked types and lengths, without unprintable characters."""
    found: dict[str, Any] = {}
    for name, longest in LONGEST.items():
        told = claims.get(name)
        if isinstance(told, str) and told.isprintable() and 0 < len(told) <= longest:
            found[name] = told
    found["email_verified"] = claims.get("email_verified") is True
    groups = claims.get(groups_claim)
    if isinstance(groups, list):
        found["groups"] = [
            each
            for each in groups[:MOST_GROUPS]
            if isinstance(each, str) and each.isprintable() and len(each) <= LONGEST_GROUP
        ]
    return found


class BoundedProvider(OpenIDConnectProvider):
    """A provider of OpenID Connect whose claims are bounded."""

    def sociallogin_from_response(self, request: HttpRequest, response: Mapping[str, Any]) -> Any:
        """Return the sign-in for a provider's answer. Raises OAuth2Error for an answer about nobody, or about two
        users.

        An answer has the claims of the token, of the user information endpoint, or of both.
        """
        claims = [each for each in (response.get("id_token"), response.get("userinfo")) if isinstance(each, dict)]
        groups_claim = settings.OIDC_PROVIDERS[self.sub_id].groups_claim
        told = [bounded(each, groups_claim) for each in claims]
        subjects = {each.get("sub") for each in told}
        if len(subjects) != 1 or None in subjects:
            raise OAuth2Error("the provider names no subject, or two")
        return super().sociallogin_from_response(
            request, {"userinfo": {k: v for each in told for k, v in each.items()}}
        )

    def extract_extra_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claims to store."""
        return dict(data["userinfo"])


provider_classes = [BoundedProvider]
