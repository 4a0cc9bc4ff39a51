"""Passwords reset by mail: through a real mail server and broker, once, told to nobody, and only where there is one."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from smtplib import SMTPException
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test import Client

from controlplane.accounts import audit, password_reset
from controlplane.accounts.mail_server import read_mail_server
from controlplane.accounts.models import AuditEntry, User
from controlplane.celery import app
from tests.controlplane import smtp_server
from tests.controlplane.smtp_server import LOGIN, PASSWORD, Sink

OLD, NEW = "a long pass phrase", "another long phrase"
EVE = "eve@example.org"


@pytest.fixture(autouse=True)
def nothing_counted(servers: Any) -> None:
    cache.clear()
    asked()


@pytest.fixture
def mail(settings: Any) -> Iterator[Sink]:
    with smtp_server.sink() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "Switchyard <yard@example.org>"
        yield server


@pytest.fixture
def eve(db: None) -> User:
    return User.objects.create_user("eve", email=EVE, password=OLD)


def asked() -> list[tuple[str, list[Any]]]:
    """What waits for the workers of the queue: the task and its arguments. It is taken out."""
    found = []
    with app.connection_for_read() as broker:
        queue = broker.SimpleQueue("maintenance")
        while True:
            try:
                message = queue.get(block=False)
            except queue.Empty:
                break
            message.ack()
            found.append((message.headers["task"], message.payload[0]))
        queue.close()
    return found


def ask(client: Client, address: str, **more: str) -> Any:
    return client.post("/password-reset", {"email": address}, **more)


def work() -> None:
    """Does what a worker would, with the tasks that it knows."""
    app.loader.import_default_modules()
    for task, arguments in asked():
        app.tasks[task](*arguments)


def link_in(server: Sink, number: int = -1) -> str:
    found = re.search(r"http://127\.0\.0\.1:8470(/password-reset/\S+)", server.mails()[number].get_content())
    assert found
    return found[1]


def choose(client: Client, link: str, password: str = NEW) -> Any:
    page = client.get(link, follow=True)
    assert page.status_code == 200
    form = re.search(r'action="(/password-reset/[^"]+)"', page.content.decode())
    return client.post(form[1], {"password1": password, "password2": password}) if form else page


def test_a_link_comes_by_mail_and_sets_a_new_password_once(mail: Sink, eve: User) -> None:
    elsewhere, client = Client(), Client()
    elsewhere.force_login(eve)
    assert 'href="/password-reset"' in client.get("/sign-in").content.decode()
    assert client.get("/password-reset").status_code == 200
    assert ask(client, EVE.upper())["Location"] == "/password-reset/sent"
    assert mail.taken == [], "a worker sends it"
    work()
    (sent,) = mail.mails()
    assert (sent["To"], sent["From"]) == (EVE, "Switchyard <yard@example.org>")
    assert sent["Subject"] == "[yard] Choose a new password"
    assert "for the user eve" in sent.get_content()
    link = link_in(mail)
    # What scans mail opens links, even twice: that changes nothing.
    for _ in range(2):
        page = Client().get(link, follow=True)
        assert link.rpartition("-")[2] not in page.request["PATH_INFO"], "no referrer has the key"
    eve.refresh_from_db()
    assert eve.check_password(OLD)
    assert choose(client, link)["Location"] == "/password-reset/done"
    eve.refresh_from_db()
    assert eve.check_password(NEW)
    assert elsewhere.get("/user").status_code == 302, "signed out everywhere"
    assert client.get("/user").status_code == 302, "nobody is signed in by a link"
    assert Client().post("/sign-in", {"username": "eve", "password": NEW}).status_code == 302
    again = choose(Client(), link, OLD)
    assert "was used, has expired, or is none" in again.content.decode()
    eve.refresh_from_db()
    assert eve.check_password(NEW)


def test_of_two_links_the_one_that_is_used_ends_the_other(mail: Sink, eve: User) -> None:
    for _ in range(2):
        password_reset.mail_link(EVE, "en")
    first, second = link_in(mail, 0), link_in(mail, 1)
    assert choose(Client(), second).status_code == 302
    assert "was used, has expired, or is none" in choose(Client(), first).content.decode()


def test_it_is_told_in_the_language_of_whoever_asked(mail: Sink, eve: User) -> None:
    client = Client(headers={"accept-language": "zh-CN"})
    assert "忘记密码" in client.get("/sign-in").content.decode()
    ask(client, EVE)
    work()
    (sent,) = mail.mails()
    assert "设置新密码" in sent["Subject"]
    assert "用户 eve" in sent.get_content()


def test_an_address_is_told_to_nobody(mail: Sink, eve: User, django_assert_num_queries: Any) -> None:
    answers = []
    for address in (EVE, "nobody@example.org"):
        client = Client()
        with django_assert_num_queries(0):
            answer = ask(client, address)
        answers.append((answer.status_code, answer["Location"], client.get(answer["Location"]).content))
    assert answers[0] == answers[1]
    waiting = asked()
    assert [task for task, _ in waiting] == [password_reset.TASK] * 2, "both are left to a worker"
    assert waiting[0][1] == [EVE, "en"], "and no link lies in the broker"
    for _, arguments in waiting:
        password_reset.mail_link(*arguments)
    assert len(mail.taken) == 1, "nobody has mail sent to strangers"


def test_only_who_has_a_password_here_gets_a_link(mail: Sink, db: None) -> None:
    for name, more in {
        "plain": {"password": OLD},
        "link": {"password": None},
        "directory": {"password": OLD, "is_from_directory": True},
        "gone": {"password": OLD, "is_active": False},
    }.items():
        User.objects.create_user(name, email=f"{name}@example.org", **more)
    User.objects.create(username="empty", email="empty@example.org")
    sent = {name: password_reset.mail_link(f"{name}@example.org", "en") for name in ("plain", "link", "directory")}
    sent |= {name: password_reset.mail_link(f"{name}@example.org", "en") for name in ("gone", "empty")}
    assert sent == {"plain": 1, "link": 0, "directory": 0, "gone": 0, "empty": 0}


def test_whoever_showed_that_an_address_is_theirs_has_it_alone(mail: Sink, eve: User) -> None:
    EmailAddress.objects.create(user=eve, email=EVE, verified=True, primary=True)
    User.objects.create_user("mallory", email=EVE, password=OLD)
    assert password_reset.mail_link(EVE, "en") == 1
    assert "for the user eve" in mail.mails()[0].get_content()


@pytest.mark.parametrize("change", [{"is_active": False}, {"is_from_directory": True}, {"password": "!"}])
def test_a_link_of_somebody_who_may_not_any_more_is_none(mail: Sink, eve: User, change: dict[str, Any]) -> None:
    password_reset.mail_link(EVE, "en")
    User.objects.filter(pk=eve.pk).update(**change)
    assert "was used, has expired, or is none" in choose(Client(), link_in(mail)).content.decode()


def test_an_old_link_a_changed_one_and_one_of_another_is_none(mail: Sink, eve: User, settings: Any) -> None:
    User.objects.create_user("mate", email="mate@example.org", password=OLD)
    password_reset.mail_link(EVE, "en")
    password_reset.mail_link("mate@example.org", "en")
    mine, other = link_in(mail, 0), link_in(mail, 1)
    (my_key, other_user) = (
        mine.partition("-reset/")[2].partition("-")[2],
        other.partition("-reset/")[2].partition("-")[0],
    )
    crossed = f"/password-reset/{other_user}-{my_key}"
    for wrong in (mine[:-1] + ("a" if mine[-1] != "a" else "b"), "/password-reset/" + "z" * 13 + "-x-y", crossed):
        assert "was used, has expired, or is none" in choose(Client(), wrong).content.decode(), wrong
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert "was used, has expired, or is none" in choose(Client(), mine).content.decode()
    eve.refresh_from_db()
    assert eve.check_password(OLD)


@pytest.mark.parametrize(
    ("password", "said"),
    [("short", "too short"), ("moderncombat", "too common"), ("x" * 5000, "at most 4096")],
)
def test_a_bad_password_is_refused_and_the_link_still_holds(mail: Sink, eve: User, password: str, said: str) -> None:
    password_reset.mail_link(EVE, "en")
    client, link = Client(), link_in(mail)
    answer = choose(client, link, password)
    assert (answer.status_code, said in answer.content.decode()) == (200, True)
    assert choose(client, link).status_code == 302


def test_the_entry_of_a_reset_is_written_with_it_or_it_is_none(
    mail: Sink, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    password_reset.mail_link(EVE, "en")
    client, link = Client(raise_request_exception=False), link_in(mail)

    def fail(*_args: Any, **_named: Any) -> None:
        raise RuntimeError("the log takes nothing")

    with monkeypatch.context() as broken:
        broken.setattr(audit, "record", fail)
        assert choose(client, link).status_code == 500
    eve.refresh_from_db()
    assert eve.check_password(OLD), "no password without its entry"
    assert choose(client, link).status_code == 302
    entry = AuditEntry.objects.get(action="user.password")
    assert (entry.actor, entry.name, entry.credential) == ("eve", "eve", "password reset link")


def test_neither_mails_nor_tries_are_without_end(mail: Sink, eve: User) -> None:
    client = Client()
    assert [ask(client, EVE).status_code for _ in range(6)] == [302] * 5 + [429], "five of an address an hour"
    assert [ask(client, f"x{n}@example.org").status_code for n in range(6)][-1] == 429, "ten of whoever asks a minute"
    assert ask(Client(REMOTE_ADDR="192.0.2.9"), "other@example.org").status_code == 302
    tries = [client.post(f"/password-reset/1-x-{n}").status_code for n in range(21)]
    assert tries == [200] * 20 + [429]


def test_nonsense_for_an_address_is_refused(mail: Sink, db: None) -> None:
    for text in ("", "eve", "eve@", "a@b.c\nBcc: x@y.z", "x" * 400 + "@example.org", "<a@b.cd>"):
        answer = ask(Client(), text)
        assert (answer.status_code, 'role="alert"' in answer.content.decode()) == (200, True), text
    assert asked() == []


def test_the_link_leads_to_this_server_whatever_host_was_asked(mail: Sink, eve: User, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    ask(Client(), EVE, HTTP_HOST="evil.example.org")
    work()
    assert "evil" not in mail.mails()[0].as_string()


def test_a_form_of_elsewhere_asks_for_nothing(mail: Sink, eve: User) -> None:
    assert ask(Client(enforce_csrf_checks=True), EVE).status_code == 403
    assert asked() == []


def test_without_redis_it_is_said(mail: Sink, eve: User, settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:9/0"}}
    answer = ask(Client(), EVE)
    assert (answer.status_code, "Redis does not answer" in answer.content.decode()) == (503, True)


def test_without_a_mail_server_the_page_says_whom_to_ask(eve: User, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    page = Client().get("/sign-in").content.decode()
    assert "Ask whoever runs this server" in page
    assert "password-reset" not in page
    for path in ("", "/sent", "/done", "/1-a-b", "/1-set-password"):
        assert Client().get(f"/password-reset{path}").status_code == 404
    assert ask(Client(), EVE).status_code == 404
    assert asked() == []


# -- the settings


def test_a_server_is_read_from_the_environment(tmp_path: Any) -> None:
    usual = {"YARD_EMAIL_FROM": "Yard <yard@example.org>"}
    assert read_mail_server({}) is None
    for url, told in {
        "smtps://yard:a%20p%40ss%2Fword@mail.example.org": ("mail.example.org", 465, True, False),
        "smtp://yard:a%20p%40ss%2Fword@mail.example.org": ("mail.example.org", 587, False, True),
        "smtp://yard:a%20p%40ss%2Fword@mail.example.org:2525": ("mail.example.org", 2525, False, True),
    }.items():
        found = read_mail_server({"YARD_EMAIL_URL": url, **usual})
        assert found is not None
        assert (found.host, found.port, found.tls, found.start_tls) == told
        assert (found.user, found.password) == (LOGIN, PASSWORD)
        assert PASSWORD not in repr(found)
    near = read_mail_server({"YARD_EMAIL_URL": "smtp://localhost", **usual})
    assert near is not None
    assert (near.port, near.start_tls, near.user) == (25, False, "")
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    kept = {"YARD_EMAIL_URL": "smtps://yard@mail.example.org", "YARD_EMAIL_PASSWORD_FILE": str(tmp_path / "secret")}
    found = read_mail_server({**kept, **usual})
    assert found is not None
    assert (found.password, found.sender) == (PASSWORD, "Yard <yard@example.org>")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"YARD_EMAIL_URL": "mail.example.org"}, "names no mail server"),
        ({"YARD_EMAIL_URL": "https://u:canary@mail.example.org"}, "names no mail server"),
        ({"YARD_EMAIL_URL": "smtp://u:canary@mail.example.org:many"}, "cannot be read"),
        ({"YARD_EMAIL_URL": "smtp://u:canary@mail.example.org:99999"}, "cannot be read"),
        ({"YARD_EMAIL_URL": "smtp://u:can/ary@mail.example.org"}, "YARD_EMAIL_URL"),
        ({"YARD_EMAIL_URL": "smtp://mail.example.org/inbox"}, "goes on after the server"),
        ({"YARD_EMAIL_URL": "smtp://mail.example.org?tls=no"}, "goes on after the server"),
        ({"YARD_EMAIL_URL": "smtp://u@mail.example.org"}, "needs a user and a password"),
        ({"YARD_EMAIL_URL": "smtp://:canary@mail.example.org"}, "needs a user and a password"),
        ({"YARD_EMAIL_URL": "smtps://u:canary@m.example.org", "YARD_EMAIL_PASSWORD_FILE": "/x"}, "say one"),
        ({"YARD_EMAIL_URL": "smtps://u@m.example.org", "YARD_EMAIL_PASSWORD_FILE": "/nowhere"}, "cannot be read"),
        ({"YARD_EMAIL_FROM": ""}, "YARD_EMAIL_FROM is not"),
        ({"YARD_EMAIL_FROM": "yard"}, 'YARD_EMAIL_FROM is "yard"'),
        ({"YARD_EMAIL_FROM": "a@b.cd\nBcc: x@y.zz"}, "YARD_EMAIL_FROM is"),
        ({"YARD_EMAIL_URL": ""}, "YARD_EMAIL_URL is not"),
    ],
)
def test_nonsense_in_the_environment_is_refused_and_no_password_is_told(wrong: dict[str, str], said: str) -> None:
    good = {"YARD_EMAIL_URL": "smtps://mail.example.org", "YARD_EMAIL_FROM": "yard@example.org"}
    with pytest.raises(ImproperlyConfigured, match=re.escape(said)) as refused:
        read_mail_server({**good, **wrong})
    assert "canary" not in str(refused.value)


def test_the_password_of_the_mail_server_is_used_and_not_logged(
    mail: Sink, eve: User, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mail.asks_password = True
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = LOGIN, PASSWORD
    with caplog.at_level(logging.DEBUG):
        password_reset.mail_link(EVE, "en")
        settings.EMAIL_HOST_PASSWORD = PASSWORD + "x"
        with pytest.raises(SMTPException) as refused:
            password_reset.mail_link(EVE, "en")
    assert (len(mail.taken), "AUTH" in mail.commands) == (1, True)
    assert PASSWORD not in caplog.text + str(refused.value) + json.dumps(connection.queries)


def test_nothing_is_sent_to_a_server_that_is_to_speak_tls_and_does_not(mail: Sink, eve: User, settings: Any) -> None:
    settings.EMAIL_USE_TLS = True
    with pytest.raises(SMTPException):
        password_reset.mail_link(EVE, "en")
    assert (mail.taken, "MAIL" in mail.commands) == ([], False)
