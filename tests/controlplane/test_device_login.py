"""Signing a program in by a code: shown, confirmed by a person who sees what asks, told once, and guessed by nobody."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connections
from django.test import Client
from django.utils import timezone

from controlplane.accounts import device_codes, service
from controlplane.accounts.models import DeviceCode, Token, User
from tests.controlplane.people import Person, Town

ROOT = Path(__file__).parents[2]
ASK = {"name": "yard on laptop"}


@pytest.fixture(autouse=True)
def nothing_counted(servers: Any) -> None:
    cache.clear()


def post(path: str, body: Any, client: Client | None = None) -> Any:
    return (client or Client()).post(f"/api/v1{path}", json.dumps(body), content_type="application/json")


def ask(**more: Any) -> dict[str, Any]:
    answer = post("/device-codes", {**ASK, **more})
    assert answer.status_code == 201, answer.content
    assert answer["Cache-Control"] == "no-store"
    return dict(answer.json())


def poll(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = post("/device-codes/token", {"device_code": asked["device_code"]})
    return answer.status_code, answer.json()


def browser(person: Person, **options: Any) -> Client:
    assert person.user is not None
    client = Client(**options)
    client.force_login(person.user)
    return client


def test_a_program_gets_its_token_once_it_was_confirmed_and_only_once(town: Town) -> None:
    asked = ask(scopes=["read"], days=7)
    assert asked["verification_uri"].endswith("/device")
    assert poll(asked)[1]["code"] == "authorization_pending"
    client = browser(town.owner)
    page = client.post("/device", {"code": asked["user_code"].lower().replace("-", " ")}).content.decode()
    for told in (
        "yard on laptop",
        "127.0.0.1",
        "read",
        asked["user_code"],
        "owner",
        "Confirm it only if you started it",
    ):
        assert told in page
    assert poll(asked)[0] == 400, "looking confirms nothing"
    assert (
        "gets its token" in client.post("/device", {"code": asked["user_code"], "answer": "confirm"}).content.decode()
    )
    status, issued = poll(asked)
    assert (status, issued["user"], issued["scopes"]) == (200, "owner", ["read"])
    token = service.token_of(issued["access_token"])
    assert token is not None
    assert token.expires_at < timezone.now() + timedelta(days=7)
    assert poll(asked)[1]["code"] == "expired_token"
    assert not DeviceCode.objects.exists()


def test_a_code_is_answered_once_and_a_refusal_is_final(town: Town) -> None:
    asked = ask()
    mine, theirs = browser(town.owner), browser(town.mate)
    code = {"code": asked["user_code"]}
    assert "gets nothing" in mine.post("/device", {**code, "answer": "refuse"}).content.decode()
    assert theirs.post("/device", {**code, "answer": "confirm"}).status_code == 422
    before = Token.objects.count()
    assert poll(asked)[1]["code"] == "access_denied"
    assert poll(asked)[1]["code"] == "expired_token"
    assert Token.objects.count() == before


def test_two_who_confirm_at_the_same_moment_are_one(transactional_db: None) -> None:
    people = [User.objects.create_user(f"user{number}") for number in range(8)]
    row, secret = device_codes.begin("yard", ["read"], 1, "192.0.2.1")

    def confirm(user: User) -> bool:
        try:
            return device_codes.answer(row, user, confirmed=True)
        finally:
            connections.close_all()

    def collect(_: int) -> bool:
        try:
            return device_codes.collect(secret).token is not None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(confirm, people)) == 1
        assert sum(pool.map(collect, range(8))) == 1
    assert Token.objects.count() == 1


def test_nobody_confirms_by_following_a_link_or_without_being_signed_in(town: Town) -> None:
    asked = ask()
    code = {"code": asked["user_code"], "answer": "confirm"}
    assert Client().post("/device", code)["Location"].startswith("/sign-in")
    client = browser(town.owner)
    assert asked["user_code"] not in client.get("/device", code).content.decode()
    assert browser(town.owner, enforce_csrf_checks=True).post("/device", code).status_code == 403
    assert client.get("/device")["X-Frame-Options"] == "DENY"
    assert poll(asked)[1]["code"] == "authorization_pending"


def test_a_token_covers_no_more_than_its_person_may(town: Town) -> None:
    asked = ask(scopes=["admin", "read"])
    client = browser(town.owner)
    page = client.post("/device", {"code": asked["user_code"]}).content.decode()
    assert "admin" not in page
    client.post("/device", {"code": asked["user_code"], "answer": "confirm"})
    assert poll(asked)[1]["scopes"] == ["read"]
    only = ask(scopes=["admin"])
    assert client.post("/device", {"code": only["user_code"], "answer": "confirm"}).status_code == 422
    staff = ask(scopes=["admin"])
    browser(town.staff).post("/device", {"code": staff["user_code"], "answer": "confirm"})
    assert poll(staff)[1]["scopes"] == ["admin"]


def test_whoever_was_made_inactive_meanwhile_gives_no_token(town: Town) -> None:
    asked = ask()
    browser(town.owner).post("/device", {"code": asked["user_code"], "answer": "confirm"})
    User.objects.filter(username="owner").update(is_active=False)
    assert poll(asked)[1]["code"] == "access_denied"


def test_codes_expire_and_whoever_asks_too_often_is_slowed(town: Town) -> None:
    asked = ask()
    poll(asked)
    answers = [poll(asked) for _ in range(20)]
    assert {body["code"] for _, body in answers} == {"slow_down"}
    assert DeviceCode.objects.get().interval_s == device_codes.LONGEST_INTERVAL_S
    DeviceCode.objects.update(expires_at=timezone.now())
    client = browser(town.owner)
    assert client.post("/device", {"code": asked["user_code"], "answer": "confirm"}).status_code == 422
    assert poll(asked)[1]["code"] == "expired_token"
    service.forget_old()
    assert not DeviceCode.objects.exists()


def test_guessing_is_counted_for_the_person_over_all_their_browsers(town: Town) -> None:
    asked = ask()
    answers = [
        browser(town.stranger).post("/device", {"code": f"BBBBBB{a}{b}"}).status_code for a in "BCDFG" for b in "BCDFG"
    ]
    assert answers == [422] * 20 + [429] * 5
    assert browser(town.stranger).post("/device", {"code": asked["user_code"]}).status_code == 429
    assert browser(town.owner).post("/device", {"code": asked["user_code"]}).status_code == 200, "and for nobody else"


def test_one_address_has_so_many_codes_and_no_more(town: Town) -> None:
    for _ in range(device_codes.MOST_OF_ADDRESS):
        ask()
    answer = post("/device-codes", ASK)
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many")
    assert post("/device-codes", ASK, Client(REMOTE_ADDR="192.0.2.9")).status_code == 201
    DeviceCode.objects.update(expires_at=timezone.now())
    ask()


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": ""}, {"name": "x" * 61}, {"name": "a\x07"}, {"name": "a\u202eb"}, {"name": " "}, [],
        {**ASK, "scopes": ["root"]}, {**ASK, "scopes": ["read"] * 4}, {**ASK, "days": 0},
        {**ASK, "days": 367}, {**ASK, "user": "admin"},
    ],
)  # fmt: skip
def test_what_no_program_asks_for_is_refused(db: None, body: Any) -> None:
    assert post("/device-codes", body).status_code == 400
    assert not DeviceCode.objects.exists()


def test_hostile_names_are_shown_as_they_are_and_do_nothing(town: Town) -> None:
    asked = ask(name="<img src=x onerror=alert(1)>")
    page = browser(town.owner).post("/device", {"code": asked["user_code"]}).content.decode()
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize("secret", ["", "x", "x" * 201, "a\u0000b", 7, None])
def test_a_secret_that_nobody_has_gets_nothing(db: None, secret: Any) -> None:
    answer = post("/device-codes/token", {"device_code": secret})
    assert answer.status_code == 400


def test_a_token_takes_itself_back_whatever_it_covers(town: Town) -> None:
    assert town.owner.user is not None
    for scope in ("read", "submit"):
        person = Person(town.owner.user, scope)
        assert person.client.delete("/api/v1/tokens/current").status_code == 204
        assert person.get("/whoami").status_code == 401
        assert person.client.delete("/api/v1/tokens/current").status_code == 401
    client = browser(town.owner)
    assert client.delete("/api/v1/tokens/current").status_code == 409
    assert Client().delete("/api/v1/tokens/current").status_code == 401


def test_yard_signs_in_and_out(live_server: Any, tmp_path: Path, settings: Any) -> None:
    """The real command on a real terminal, against a real server."""
    settings.PUBLIC_URL = live_server.url
    user = User.objects.create_user("mia")
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for name in ("YARD_URL", "YARD_TOKEN", "YARD_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    yard = [sys.executable, "-m", "switchyard"]
    leader, follower = pty.openpty()
    pipes = {"stdin": follower, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*yard, "login", live_server.url], env=environment, cwd=ROOT, **pipes) as login:  # type: ignore[call-overload]
        os.close(follower)
        said = [login.stderr.readline() for _ in range(3)]
        assert f"open {live_server.url}/device" in said[0]
        client = Client()
        client.force_login(user)
        done = client.post("/device", {"code": said[2].strip(), "answer": "confirm"})
        assert "gets its token" in done.content.decode()
        out, err = login.communicate(timeout=60)
        os.close(leader)
    assert login.returncode == 0, err
    assert "you are mia" in out
    config = tmp_path / ".config" / "yard" / "config.toml"
    assert config.stat().st_mode & 0o777 == 0o600
    assert "yard_" in config.read_text()
    assert Token.objects.get().scopes == ["read", "submit"]
    out = subprocess.run(
        [*yard, "logout"], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "taken back" in out
    assert not Token.objects.exists()
    assert "yard_" not in config.read_text()
    again = subprocess.run([*yard, "logout"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2
