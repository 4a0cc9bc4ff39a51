"""Audit entries for what allauth and Django do with passwords, addresses, second factors and sign-ins.

They are written by signals, each within the transaction of the change: of new second factors and recovery codes by the
signal of their rows, because allauth's own comes only after the commit; of the others by allauth's signals, which it
sends right after it wrote the change, in views that are one transaction (``pages.urls``, ``pages.password_reset``,
``pages.address``, ``pages.user``) or in ``adapters.ProviderAdapter``.

Only the entry of a sign-in is not in the transaction of its change, the session, which is saved with the response.
"""

from __future__ import annotations

from typing import Any

from allauth.account.signals import email_changed, password_reset
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_removed
from allauth.socialaccount.signals import social_account_added, social_account_removed
from django.contrib.auth.signals import user_logged_in
from django.db.models.signals import post_save

from controlplane.accounts import audit
from controlplane.accounts.models import User


def connect() -> None:
    """Connect to the signals; called once, when the application is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="audit")
    password_reset.connect(_password, dispatch_uid="audit")
    email_changed.connect(_address, dispatch_uid="audit")
    post_save.connect(_factor_added, sender=Authenticator, dispatch_uid="audit")
    authenticator_removed.connect(_factor_removed, dispatch_uid="audit")
    social_account_added.connect(_account_added, dispatch_uid="audit")
    social_account_removed.connect(_account_removed, dispatch_uid="audit")


def _signed_in(user: User, **_unused: Any) -> None:
    audit.record("user.sign_in", user)


def _password(user: User, **_unused: Any) -> None:
    audit.record("user.password", user)


def _address(user: User, from_email_address: Any, to_email_address: Any, **_unused: Any) -> None:
    before = {"address": from_email_address.email} if from_email_address else {}
    audit.record("user.address", user, before=before, after={"address": to_email_address.email})


def _factor_added(instance: Authenticator, created: bool, **_unused: Any) -> None:
    if created:
        audit.record("user.factor_add", instance.user, after={"factor": instance.type})


def _factor_removed(user: User, authenticator: Any, **_unused: Any) -> None:
    audit.record("user.factor_remove", user, before={"factor": authenticator.type})


def _account_added(sociallogin: Any, **_unused: Any) -> None:
    account = {"provider": sociallogin.account.provider, "account": sociallogin.account.uid}
    audit.record("user.provider_add", sociallogin.user, after=account)


def _account_removed(socialaccount: Any, **_unused: Any) -> None:
    account = {"provider": socialaccount.provider, "account": socialaccount.uid}
    audit.record("user.provider_remove", socialaccount.user, before=account)
