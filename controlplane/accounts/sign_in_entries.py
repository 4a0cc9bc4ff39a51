"""Entries of the audit log for what Django and allauth do with passwords, second factors and sign-ins.

They tell by signals, which they send right after they wrote the change.
"""

from __future__ import annotations

from typing import Any

from allauth.account.signals import password_changed, password_reset, password_set
from allauth.mfa.signals import authenticator_added, authenticator_removed, authenticator_reset
from allauth.socialaccount.signals import social_account_added, social_account_removed
from django.contrib.auth.signals import user_logged_in

from controlplane.accounts import audit
from controlplane.accounts.models import User


def connect() -> None:
    """Begins to listen; called once, when the application is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="audit")
    for signal in (password_changed, password_set, password_reset):
        signal.connect(_password, dispatch_uid="audit")
    authenticator_added.connect(_factor_added, dispatch_uid="audit")
    authenticator_reset.connect(_factor_added, dispatch_uid="audit")
    authenticator_removed.connect(_factor_removed, dispatch_uid="audit")
    social_account_added.connect(_account_added, dispatch_uid="audit")
    social_account_removed.connect(_account_removed, dispatch_uid="audit")


def _signed_in(user: User, **_told: Any) -> None:
    audit.record("user.sign_in", user)


def _password(user: User, **_told: Any) -> None:
    audit.record("user.password", user)


def _factor_added(user: User, authenticator: Any, **_told: Any) -> None:
    audit.record("user.factor_add", user, after={"factor": authenticator.type})


def _factor_removed(user: User, authenticator: Any, **_told: Any) -> None:
    audit.record("user.factor_remove", user, before={"factor": authenticator.type})


def _account_added(sociallogin: Any, **_told: Any) -> None:
    told = {"provider": sociallogin.account.provider, "account": sociallogin.account.uid}
    audit.record("user.provider_add", sociallogin.user, after=told)


def _account_removed(socialaccount: Any, **_told: Any) -> None:
    told = {"provider": socialaccount.provider, "account": socialaccount.uid}
    audit.record("user.provider_remove", socialaccount.user, before=told)
