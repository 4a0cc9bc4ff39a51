"""Passwords forgotten and set anew by a link that came by mail.

Whoever asks is answered before anybody is looked for: a worker looks and sends, so neither the answer nor the time that
it takes tells whether an address is somebody's.
"""

from __future__ import annotations

from typing import Any, Final

from allauth.account.adapter import get_adapter
from allauth.account.forms import ResetPasswordForm, UserTokenForm, default_token_generator
from allauth.account.internal.flows.password_reset import request_password_reset
from allauth.account.internal.userkit import filter_users_by_email
from django.http import HttpRequest
from django.utils import translation

from controlplane.accounts.models import User

TASK: Final = "maintenance.mail_reset_link"
# A mail that could not be sent by then is asked for again by whoever wants it.
EXPIRES_S: Final = 600


def may_reset(user: User) -> bool:
    """Whether this user signs in by a password that is kept here."""
    return user.is_active and not user.is_from_directory and bool(user.password) and user.has_usable_password()


def mail_link(address: str, language: str) -> int:
    """Sends a link to each user with this address who may reset their password; returns to how many."""
    users = [each for each in filter_users_by_email(address, is_active=True, prefer_verified=True) if may_reset(each)]
    if users:
        with translation.override(language):
            request_password_reset(None, address, users, default_token_generator)
    return len(users)


class ResetForm(ResetPasswordForm):
    """Takes an address and has a worker do the rest."""

    def clean_email(self) -> str:
        return str(self.cleaned_data["email"]).lower()

    def save(self, request: HttpRequest, **kwargs: Any) -> str:
        """Raises an OperationalError of kombu where the broker does not answer."""
        from controlplane.celery import app

        address = str(self.cleaned_data["email"])
        app.send_task(TASK, (address, translation.get_language() or "en"), retry=False, expires=EXPIRES_S)
        return address


class ResetTokenForm(UserTokenForm):
    """Refuses the link of somebody who may not reset their password any more."""

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean()
        if not may_reset(self.reset_user):
            raise get_adapter().validation_error("invalid_password_reset")
        return found
