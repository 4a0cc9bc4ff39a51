"""A person's e-mail address: theirs once they followed a link, asked for with a password, and within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core.cache import cache
from django.test import Client

from controlplane.accounts import audit
from controlplane.accounts.models import AuditEntry, User
from tests.controlplane import smtp_server
from tests.controlplane.people import Town
from tests.controlplane.smtp_server import Sink

PASSWORD = "a long pass phrase"
OWN = "owner@example.org"


@pytest.fixture(autouse=True)
def nothing_counted(servers: Any) -> None:
    cache.clear()


@pytest.fixture
def mail(settings: Any) -> Iterator[Sink]:
    with smtp_server.sink() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "yard@example.org"
        yield server


@pytest.fixture
def owner(town: Town) -> User:
    assert town.owner.user is not None
    town.owner.user.set_password(PASSWORD)
    town.owner.user.save()
    return town.owner.user


def signed_in(name: str = "owner") -> Client:
    """A browser whose user has just given their password, again."""
    client = Client()
    client.post("/sign-in", {"username": name, "password": PASSWORD})
    client.post("/sign-in/again?next=/user", {"password": PASSWORD})
    return client


def ask(client: Client, address: str) -> Any:
    return client.post("/user/address", {"email": address})


def link_in(server: Sink) -> str:
    found = re.search(r"http://127\.0\.0\.1:8470(/user/address/\S+)", server.mails()[-1].get_content())
    assert found
    return found[1]


def test_an_address_is_a_persons_once_they_followed_the_link(mail: Sink, owner: User) -> None:
    EmailAddress.objects.create(user=owner, email="old@example.org", verified=True, primary=True)
    client = signed_in()
    assert ask(client, OWN.upper())["Location"] == "/user?done=address-asked"
    (sent,) = mail.mails()
    assert (sent["To"], sent["Subject"]) == (OWN, "[yard] Confirm your e-mail address")
    assert "user owner says" in sent.get_content()
    page = client.get("/user").content.decode()
    assert f"{OWN} <span" in page
    assert "not confirmed yet" in page
    link = link_in(mail)
    assert 'action="' not in client.get(link).content.decode().partition("<form")[2].partition(">")[0]
    owner.refresh_from_db()
    assert owner.email == "", "opening it changes nothing"
    assert Client().get(link)["Location"].startswith("/sign-in?next=/user/address/")
    assert client.post(link)["Location"] == "/user?done=address"
    owner.refresh_from_db()
    assert owner.email == OWN
    assert list(EmailAddress.objects.values_list("email", "verified", "primary")) == [(OWN, True, True)]
    entry = AuditEntry.objects.get(action="user.address")
    assert (entry.actor, entry.before, entry.after) == ("owner", {"address": "old@example.org"}, {"address": OWN})
    assert client.post(link).status_code == 410, "once"


def test_an_address_that_an_administrator_noted_is_confirmed_too(mail: Sink, owner: User) -> None:
    User.objects.filter(pk=owner.pk).update(email=OWN)
    client = signed_in()
    assert f'value="{OWN}"' in client.get("/user").content.decode()
    assert ask(client, OWN).status_code == 302
    owner.refresh_from_db()
    assert owner.email == OWN, "which stays meanwhile"
    assert client.post(link_in(mail)).status_code == 302
    answer = ask(client, OWN)
    assert (answer.status_code, "already associated" in answer.content.decode()) == (422, True)
    assert f'value="{OWN}"' not in client.get("/user").content.decode()


def test_nobody_confirms_for_another(mail: Sink, owner: User, town: Town) -> None:
    client, thief = signed_in(), Client()
    ask(client, OWN)
    assert town.stranger.user is not None
    thief.force_login(town.stranger.user)
    link = link_in(mail)
    assert "is for another user" in thief.get(link).content.decode()
    assert thief.post(link).status_code == 410
    assert not EmailAddress.objects.filter(verified=True).exists()
    assert thief.get("/user").status_code == 200, "and nobody is signed out by a link"


def test_a_stolen_session_changes_no_address(mail: Sink, owner: User) -> None:
    client = Client()
    client.force_login(owner)
    assert "/sign-in/again" in ask(client, OWN)["Location"]
    assert (mail.taken, EmailAddress.objects.count()) == ([], 0)


def test_the_address_of_somebody_else_is_told_to_nobody_and_stays_theirs(mail: Sink, owner: User, town: Town) -> None:
    EmailAddress.objects.create(user=town.mate.user, email="mate@example.org", verified=True, primary=True)
    client = signed_in()
    assert ask(client, "mate@example.org")["Location"] == "/user?done=address-asked", "as for an address that is free"
    assert client.post(link_in(mail)).status_code == 410
    assert EmailAddress.objects.get(verified=True).user == town.mate.user


@pytest.mark.parametrize(
    "wrong", ["", "x", "a@b", "a@b.cd\nBcc: victim@example.org", "a@b.cd, c@d.ef", "<a@b.cd>", "x" * 300 + "@b.cd"]
)
def test_what_is_no_address_is_refused_and_no_head_is_written(mail: Sink, owner: User, wrong: str) -> None:
    answer = ask(signed_in(), wrong)
    assert (answer.status_code, 'role="alert"' in answer.content.decode()) == (422, True)
    assert (mail.taken, EmailAddress.objects.count()) == ([], 0)


def test_one_address_waits_and_few_are_asked_for(mail: Sink, owner: User) -> None:
    client = signed_in()
    assert [ask(client, f"a{n}@example.org").status_code for n in range(4)] == [302, 302, 302, 429]
    assert [each.email for each in EmailAddress.objects.all()] == ["a2@example.org"]
    assert len(mail.taken) == 3


def test_a_mail_server_that_takes_nothing_is_said(mail: Sink, owner: User, settings: Any) -> None:
    mail.refused[OWN] = "550 nobody here"
    client = signed_in()
    assert ask(client, OWN).status_code == 503
    settings.EMAIL_PORT = 9
    answer = ask(client, OWN)
    assert (answer.status_code, "does not take mail" in answer.content.decode()) == (503, True)
    assert EmailAddress.objects.count() == 0


def test_the_entry_of_an_address_is_written_with_it_or_it_is_none(
    mail: Sink, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in()
    client.raise_request_exception = False
    ask(client, OWN)

    def fail(*_args: Any, **_named: Any) -> None:
        raise RuntimeError("the log takes nothing")

    with monkeypatch.context() as broken:
        broken.setattr(audit, "record", fail)
        assert client.post(link_in(mail)).status_code == 500
    assert not EmailAddress.objects.filter(verified=True).exists()
    assert client.post(link_in(mail)).status_code == 302


def test_without_a_mail_server_nothing_of_it_is_there(owner: User, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    client = signed_in()
    page = client.get("/user").content.decode()
    assert "/user/address" not in page
    assert "/user/notices" not in page
    assert ask(client, OWN).status_code == 404
    assert client.get("/user/address/x").status_code == 404


def test_it_is_all_said_in_chinese(mail: Sink, owner: User) -> None:
    client = signed_in()
    client.post("/language", {"language": "zh-hans"})
    assert "作业结束时发送邮件" in client.get("/user").content.decode()
    ask(client, OWN)
    assert "确认您的电子邮件地址" in mail.mails()[0]["Subject"]
    assert "登录后" in mail.mails()[0].get_content()
