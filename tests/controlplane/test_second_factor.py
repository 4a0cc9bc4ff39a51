"""The second factor: set up, asked for at every door, counted by all processes together, taken once, and lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client

from controlplane.accounts import service
from controlplane.accounts.models import User
from tests.controlplane.people import Town

ROOT = Path(__file__).parents[2]
PASSWORD = "a long pass phrase"


@pytest.fixture(autouse=True)
def nothing_counted(servers: Any) -> None:
    cache.clear()


@pytest.fixture
def visitor(db: None) -> User:
    return User.objects.create_user("visitor", password=PASSWORD, is_staff=True, is_superuser=True)


def code(secret: str) -> str:
    """The code of now, with enough of its half minute left to be typed."""
    while time.time() % 30 > 20:
        time.sleep(0.2)
    return auth.format_hotp_value(auth.hotp_value(secret, next(iter(auth.yield_hotp_counters_from_time()))))


def wrong(secret: str) -> str:
    return f"{(int(code(secret)) + 1) % 1_000_000:06}"


def give_password(client: Client, **more: str) -> Any:
    return client.post("/sign-in", {"username": "visitor", "password": PASSWORD, **more})


def is_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def set_up(client: Client) -> str:
    """A second factor of the visitor, through the pages; returns its secret."""
    give_password(client)
    asked = client.get("/user/second-factor/new")
    assert asked["Location"].startswith("/sign-in/again?"), "a stolen session sets up nothing"
    again = client.post(asked["Location"], {"password": PASSWORD})
    assert again["Location"] == "/user/second-factor/new"
    page = client.get("/user/second-factor/new").content.decode()
    found = re.search(r">([A-Z2-7]{32})<", page)
    assert found
    assert "data:image/svg+xml" in page
    assert client.post("/user/second-factor/new", {"code": wrong(found[1])}).status_code == 200
    done = client.post("/user/second-factor/new", {"code": "x"})
    assert 'role="alert"' in done.content.decode()
    page = client.get("/user/second-factor/new").content.decode()
    found = re.search(r">([A-Z2-7]{32})<", page)
    assert found
    done = client.post("/user/second-factor/new", {"code": code(found[1])})
    assert done["Location"] == "/user/recovery-codes"
    return found[1]


def test_it_is_asked_for_after_the_password_and_leads_on(visitor: User) -> None:
    secret = set_up(Client())
    client = Client()
    assert give_password(client, next="/admin/")["Location"] == "/sign-in/code"
    assert not is_in(client)
    assert client.get("/user").status_code == 302
    assert client.get("/admin/")["Location"].startswith("/admin/login/")
    assert client.get("/sign-in")["Location"] == "/sign-in/code"
    refused = client.post("/sign-in/code", {"code": wrong(secret)})
    assert 'role="alert"' in refused.content.decode()
    assert not is_in(client)
    assert client.post("/sign-in/code", {"code": code(secret)})["Location"] == "/admin/"
    assert is_in(client)
    assert client.get("/admin/").status_code == 200


def test_whoever_gave_another_password_starts_over(visitor: User) -> None:
    set_up(Client())
    client = Client()
    give_password(client)
    client.post("/sign-out")
    assert client.get("/sign-in").status_code == 200
    assert client.get("/sign-in/code")["Location"] == "/sign-in"


def test_a_link_is_followed_by_it_too(visitor: User) -> None:
    secret = set_up(Client())
    client = Client()
    assert client.post(service.make_sign_in_link(visitor))["Location"] == "/sign-in/code"
    assert not is_in(client)
    client.post("/sign-in/code", {"code": code(secret)})
    assert is_in(client)


def test_a_code_is_taken_once(visitor: User) -> None:
    secret = set_up(Client())
    one, other = Client(), Client()
    give_password(one)
    give_password(other)
    told = code(secret)
    assert one.post("/sign-in/code", {"code": told}).status_code == 302
    assert other.post("/sign-in/code", {"code": told}).status_code == 200
    assert (is_in(one), is_in(other)) == (True, False)


def test_a_recovery_code_is_taken_once_too(visitor: User) -> None:
    client = Client()
    set_up(client)
    page = client.get("/user/recovery-codes").content.decode()
    codes = re.findall(r"^(?:<pre[^>]*>|.*>)?(\d{8})$", page, re.MULTILINE)
    assert len(codes) == 10
    assert client.get("/user/recovery-codes/file").content.decode().split() == codes
    one, other = Client(), Client()
    give_password(one)
    assert one.post("/sign-in/code", {"code": codes[3]}).status_code == 302
    give_password(other)
    assert other.post("/sign-in/code", {"code": codes[3]}).status_code == 200
    assert not is_in(other)
    assert client.post("/user/recovery-codes/new").status_code == 302
    assert codes[4] not in client.get("/user/recovery-codes").content.decode()


def test_what_lies_in_the_database_is_no_second_factor(visitor: User) -> None:
    secret = set_up(Client())
    kept = repr([each.data for each in Authenticator.objects.all()])
    assert secret not in kept
    assert "gAAAA" in kept
    admin = Client()
    admin.force_login(visitor)
    row = Authenticator.objects.filter(type="totp").get()
    page = admin.get(f"/admin/mfa/authenticator/{row.pk}/change/").content.decode()
    assert "gAAAA" not in page
    assert admin.get("/admin/mfa/authenticator/add/").status_code == 403
    assert admin.get("/admin/socialaccount/socialaccount/add/").status_code == 403


def test_a_stolen_session_removes_nothing_and_whoever_has_the_server_does(visitor: User) -> None:
    secret = set_up(Client())
    client = Client()
    client.force_login(visitor)
    for path in ("remove", "new"):
        assert "/sign-in/again" in client.post(f"/user/second-factor/{path}", {}, follow=True).redirect_chain[-1][0]
    assert "/sign-in/again" in client.get("/user/recovery-codes")["Location"]
    assert client.post("/sign-in/again/code?next=/user/second-factor/remove", {"code": code(secret)}).status_code == 302
    assert client.post("/user/second-factor/remove")["Location"] == "/user/second-factor"
    assert not Authenticator.objects.exists()
    set_up(Client())
    call_command("remove_second_factor", "visitor")
    assert not Authenticator.objects.exists()
    assert give_password(Client())["Location"] == "/"


_GUESS = """
import django; django.setup()
from django.test import Client
client = Client(REMOTE_ADDR={address!r}, HTTP_HOST="127.0.0.1")
client.cookies["yard_session"] = {session!r}
answers = [client.post("/sign-in/code", {{"code": f"{{number:06}}"}}).content.decode() for number in range(8)]
print(sum("Incorrect code" in each for each in answers))
"""


def test_processes_count_guesses_together(transactional_db: None, settings: Any) -> None:
    """Two processes guess at one person's codes from two addresses: ten guesses in all are judged, and no more."""
    User.objects.create_user("visitor", password=PASSWORD)
    secret = set_up(Client())
    cache.clear()
    client = Client()
    give_password(client)
    session = client.cookies["yard_session"].value
    database = settings.DATABASES["default"]["NAME"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DATABASE_URL": _address_of(database)}
    judged = []
    for address in ("192.0.2.1", "192.0.2.2"):
        command = [sys.executable, "-c", _GUESS.format(address=address, session=session)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        judged.append(int(done.stdout.split()[-1]))
    assert judged == [8, 2]
    answer = client.post("/sign-in/code", {"code": code(secret)})
    assert answer.status_code == 200, "not even the right one, for five minutes"
    assert not is_in(client)


def _address_of(database: str) -> str:
    base, mark, query = os.environ["DATABASE_URL"].partition("?")
    return f"{base.rpartition('/')[0]}/{database}{mark}{query}"


def test_without_redis_no_code_is_judged_and_passwords_still_are(visitor: User, settings: Any) -> None:
    plain = User.objects.create_user("plain", password=PASSWORD)
    secret = set_up(Client())
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:9/0"}}
    client = Client()
    give_password(client)
    answer = client.post("/sign-in/code", {"code": code(secret)})
    assert answer.status_code == 503
    assert not is_in(client)
    other = Client()
    assert other.post("/sign-in", {"username": plain.username, "password": PASSWORD}).status_code == 302


def test_the_page_says_where_one_is_signed_in_and_ends_it(town: Town) -> None:
    user = town.owner.user
    assert user is not None
    user.set_password(PASSWORD)
    user.save()
    here, there, thief = Client(), Client(headers={"user-agent": "<b>Lynx</b>"}), Client()
    for client in (here, there):
        client.post("/sign-in", {"username": "owner", "password": PASSWORD})
    page = here.get("/user").content.decode()
    assert "&lt;b&gt;Lynx" in page
    found = re.search(r'action="(/user/sessions/\d+/end)"', page)
    assert found
    assert town.stranger.user is not None
    thief.force_login(town.stranger.user)
    assert thief.post(found[1]).status_code == 404
    assert here.get(found[1]).status_code == 405
    assert here.post(found[1])["Location"] == "/user?done=ended"
    assert [client.get("/user").status_code for client in (here, there)] == [200, 302]
    assert here.post("/user/theme", {"theme": "dark"}).status_code == 302
    assert 'data-theme="dark"' in here.get("/user").content.decode()


def test_what_was_encrypted_with_a_former_key_still_opens(settings: Any) -> None:
    adapter = get_adapter()
    kept = adapter.encrypt("JBSWY3DPEHPK3PXP")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key, of more than fifty characters, of this test"
    assert adapter.decrypt(kept) == "JBSWY3DPEHPK3PXP"
