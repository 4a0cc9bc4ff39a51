"""allauth's adapters: nobody signs up, attempts are limited by the guard, secrets of second factors are encrypted, and
claims of providers are checked before anything is created from them."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any
from urllib.parse import quote

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import get_connection
from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from controlplane.accounts import guard
from controlplane.accounts.memberships import follow_groups
from controlplane.accounts.models import User
from controlplane.accounts.providers import Provider

# Valid user names from providers; otherwise the name is made from the address.
_NAME = re.compile(r"[a-z0-9][a-z0-9._+@-]{0,62}")


class AccountAdapter(DefaultAccountAdapter):
    """Signs in users whom the guard admits."""

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Counts nothing, because the guard does, wherever ``authenticate`` is called."""

    def get_client_ip(self, request: HttpRequest) -> str:
        """The address that the guard counts too."""
        return guard.who(request).address or "0.0.0.0"

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def is_safe_url(self, url: str | None) -> bool:
        """Whether this is a page of this site; other targets after signing in are refused."""
        return bool(url) and str(url).startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)

    def clean_username(self, username: str, shallow: bool = False) -> str:
        """Validates a name from a provider. Raises ValidationError for one that could be confused with another."""
        if not _NAME.fullmatch(username):
            raise self.validation_error("invalid_login")
        return str(super().clean_username(username, shallow))

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """Shows nothing, because each page reports its own result."""

    def clean_password(self, password: str, user: User | None = None) -> str:
        """Validates a new password. Raises ValidationError for one that is too long to hash, or too easy to guess."""
        if len(password) > guard.LONGEST_PASSWORD:
            raise ValidationError(_("A password has at most %(most)s characters.") % {"most": guard.LONGEST_PASSWORD})
        return str(super().clean_password(password, user))

    def get_reset_password_from_key_url(self, key: str) -> str:
        """The address in the mail, from the settings, whatever host the request named."""
        path = reverse("account_reset_password_from_key", kwargs={"uidb36": "UID", "key": "KEY"})
        return settings.PUBLIC_URL.rstrip("/") + path.replace("UID-KEY", quote(key))

    def get_email_confirmation_url(self, request: HttpRequest, emailconfirmation: Any) -> str:
        """The address in the mail that confirms an address, from the settings."""
        return settings.PUBLIC_URL.rstrip("/") + reverse("account_confirm_email", args=[emailconfirmation.key])

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Sends a mail that needs no request, so that workers send it too."""
        message = self.render_mail(template_prefix, email, {"email": email, **context})
        # The connection is closed whatever the server answers.
        with get_connection() as connection:
            connection.send_messages([message])


class SecondFactorAdapter(DefaultMFAAdapter):
    """Keeps the secrets of second factors encrypted, with a key derived from the server's own."""

    def get_totp_issuer(self) -> str:
        return f"Switchyard {settings.CLUSTER_NAME}"

    def get_totp_label(self, user: User) -> str:
        return user.get_username()

    def encrypt(self, text: str) -> str:
        return _keys().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """The secret. Raises ValueError if it was encrypted with another key of the server."""
        try:
            return _keys().decrypt(encrypted_text.encode()).decode()
        except InvalidToken:
            raise ValueError("a second factor was encrypted with another YARD_SECRET_KEY; remove it") from None


def _keys() -> MultiFernet:
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    digests = (hashlib.sha256(b"second factors\0" + str(key).encode()).digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(each)) for each in digests])


class ProviderAdapter(DefaultSocialAccountAdapter):
    """Decides which users a provider signs in, and for whom an account may be created."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Refuses users who have no account and get none, with a page that says why; applies the provider's groups."""
        # allauth connects an account and sends a mail about it there, after it has called the provider.
        sociallogin.connect = transaction.atomic(sociallogin.connect)
        provider = settings.OIDC_PROVIDERS[sociallogin.account.provider]
        if sociallogin.is_existing:
            follow_groups(sociallogin.user, provider.grants, _groups(sociallogin), provider.title)
        elif sociallogin.state.get("process") != "connect" and (why := _refusal(provider, sociallogin)):
            values = {"said": why, "provider": provider.title}
            raise ImmediateHttpResponse(render(request, "sign_in_refused.html", values, status=403))

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return not _refusal(settings.OIDC_PROVIDERS[sociallogin.account.provider], sociallogin)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        """Creates the account, with the roles of the provider's groups."""
        with transaction.atomic():
            user: User = super().save_user(request, sociallogin, form)
            provider = settings.OIDC_PROVIDERS[sociallogin.account.provider]
            follow_groups(user, provider.grants, _groups(sociallogin), provider.title)
        return user


def _groups(sociallogin: SocialLogin) -> frozenset[str]:
    return frozenset(sociallogin.account.extra_data.get("groups", ()))


def _refusal(provider: Provider, sociallogin: SocialLogin) -> str:
    """Return why this person gets no account by signing in; empty if they do."""
    if not provider.domains and not provider.groups:
        return _(
            "Nobody here is connected with this account of %(provider)s. Sign in, and connect it on your user page."
        ) % {"provider": provider.title}
    verified = {each.email.lower() for each in sociallogin.email_addresses if each.verified}
    if provider.domains and not any(email.rpartition("@")[2] in provider.domains for email in verified):
        return _("%(provider)s confirms no e-mail address of yours at %(domains)s.") % {
            "provider": provider.title,
            "domains": ", ".join(sorted(provider.domains)),
        }
    if provider.groups and not provider.groups & _groups(sociallogin):
        return _("At %(provider)s you are in none of the groups that may use this cluster.") % {
            "provider": provider.title
        }
    addresses = {each.email for each in sociallogin.email_addresses}
    if any(User.objects.filter(email__iexact=each).exists() for each in addresses):
        return _(
            "Somebody here has your e-mail address. Sign in as before, and connect %(provider)s on your user page."
        ) % {"provider": provider.title}
    return ""
