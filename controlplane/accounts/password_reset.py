"""Resetting forgotten passwords by a link sent by mail.

The request is answered before the user is looked up: a worker does that and sends the mail, so neither the answer nor
its duration tells whether an address belongs to a user.
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
# A mail that was not sent by then has to be requested again.
EXPIRES_S: Final = 600


def may_reset(user: User) -> bool:
    """Whether this user signs in by a password that is stored here."""
    return user.is_active and not user.is_from_directory and bool(user.password) and user.has_usable_password()


def mail_link(address: str, language: str) -> int:
    """Send a link to each user with this address who may reset their password; return how many."""
    users = [each for each in filter_users_by_email(address, is_active=True, prefer_verified=True) if may_reset(each)]
    if users:
        with translation.override(language):
            request_password_reset(None, address, users, default_token_generator)
    return len(users)


class ResetForm(ResetPasswordForm):
    """Takes an address and sends the task to a worker."""

    def clean_email(self) -> str:
        return str(self.cleaned_data["email"]).lower()

    def save(self, request: HttpRequest, **kwargs: Any) -> str:
        """Raises an OperationalError of kombu where the broker does not answer."""
        from controlplane.celery import app

        address = str(self.cleaned_data["email"])
        app.send_task(TASK, (address, translation.get_language() or "en"), retry=False, expires=EXPIRES_S)
        return address


class ResetTokenForm(UserTokenForm):
    """Refuses the link of a user who may not reset their password any more."""

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean()
        if not may_reset(self.reset_user):
            raise get_adapter().validation_error("invalid_password_reset")
        return found
