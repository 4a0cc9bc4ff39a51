"""Entries of the audit log that allauth's signals write: each is there with its change, or neither is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.core.cache import cache
from django.test import Client

from controlplane.accounts import audit
from controlplane.accounts.models import AuditEntry, User
from tests.controlplane.test_providers import World, issuer, world  # noqa: F401  fixtures
from tests.controlplane.test_second_factor import PASSWORD, code

OTHER = "another long phrase"


@pytest.fixture(autouse=True)
def nothing_counted(servers: Any) -> None:
    cache.clear()


@pytest.fixture
def eve(transactional_db: None) -> User:
    """In a test whose transactions are real ones: what allauth does on commit happens."""
    return User.objects.create_user("eve", password=PASSWORD)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether the audit log takes nothing, which a test may say."""

    def fail(*_args: Any, **_named: Any) -> None:
        raise RuntimeError("the log takes nothing")

    def say(is_broken: bool) -> None:
        monkeypatch.undo()
        if is_broken:
            monkeypatch.setattr(audit, "record", fail)

    return say


def signed_in() -> Client:
    client = Client(raise_request_exception=False)
    client.post("/sign-in", {"username": "eve", "password": PASSWORD})
    client.post("/sign-in/again?next=/user", {"password": PASSWORD})
    return client


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


def set_up(client: Client) -> int:
    page = client.get("/user/second-factor/new").content.decode()
    found = re.search(r">([A-Z2-7]{32})<", page)
    assert found
    return client.post("/user/second-factor/new", {"code": code(found[1])}).status_code


def test_a_second_factor_and_its_entry_are_both_there_or_neither(eve: User, broken: Any) -> None:
    client = signed_in()
    broken(True)
    assert (set_up(client), Authenticator.objects.count()) == (500, 0)
    broken(False)
    assert (set_up(client), Authenticator.objects.count()) == (302, 2)
    assert actions() == ["user.sign_in", "user.factor_add", "user.factor_add"]
    kept = Authenticator.objects.get(type="recovery_codes").pk
    broken(True)
    assert client.post("/user/recovery-codes/new").status_code == 500
    assert Authenticator.objects.filter(pk=kept).exists(), "the codes from before hold"
    assert client.post("/user/second-factor/remove").status_code == 500
    assert Authenticator.objects.count() == 2
    broken(False)
    assert client.post("/user/recovery-codes/new").status_code == 302
    assert client.post("/user/second-factor/remove").status_code == 302
    assert actions()[3:] == ["user.factor_add", "user.factor_remove", "user.factor_remove"]
    assert {entry.actor for entry in AuditEntry.objects.all()} == {"eve"}


def test_a_password_and_its_entry_are_both_there_or_neither(eve: User, broken: Any) -> None:
    client = signed_in()
    sent = {"old": PASSWORD, "new": OTHER, "again": OTHER}
    broken(True)
    assert client.post("/user/password", sent).status_code == 500
    eve.refresh_from_db()
    assert eve.check_password(PASSWORD)
    broken(False)
    assert client.post("/user/password", sent).status_code == 302
    assert actions() == ["user.sign_in", "user.password", "user.end_sessions"]


def test_an_account_of_a_provider_and_its_entry_are_both_there_or_neither(
    eve: User,
    world: World,  # noqa: F811
    broken: Any,
) -> None:
    client = signed_in()
    broken(True)
    assert world.sign_in(client, process="connect", next="/user").status_code == 500
    assert not SocialAccount.objects.exists()
    broken(False)
    assert world.sign_in(client, process="connect", next="/user").status_code == 302
    account = SocialAccount.objects.get()
    broken(True)
    assert client.post("/user/accounts", {"account": account.pk}).status_code == 500
    assert SocialAccount.objects.exists()
    broken(False)
    assert client.post("/user/accounts", {"account": account.pk}).status_code == 302
    assert actions() == ["user.sign_in", "user.provider_add", "user.provider_remove"]
