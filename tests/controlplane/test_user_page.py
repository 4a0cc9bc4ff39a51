"""The reader's own page: tokens shown once and revoked, the password, and signing out everywhere; nobody else's."""

from __future__ import annotations

import re
import uuid

import pytest
from django.test import Client

from controlplane.accounts import service
from controlplane.accounts.models import Token, User
from tests.controlplane.people import Person, Town

PASSWORD, OTHER = "a long pass phrase", "another long phrase"
ACTS = ("/user/tokens", f"/user/tokens/{uuid.uuid4()}/revoke", "/user/password", "/user/sign-out-everywhere")


def browser(user: User | None, **options: bool) -> Client:
    assert user is not None
    client = Client(**options)
    client.force_login(user)
    return client


def made(client: Client, **sent: object) -> str:
    answer = client.post("/user/tokens", {"name": "laptop", "scopes": ["read"], "days": "30", **sent})
    assert answer.status_code == 201, answer.content
    found = re.search(r"yard_[\w-]{43}", answer.content.decode())
    assert found
    assert "no-store" in answer["Cache-Control"]
    return found[0]


def test_a_token_is_shown_once_works_and_is_revoked(town: Town) -> None:
    client = browser(town.owner.user)
    secret = made(client)
    asking = Client(headers={"authorization": f"Bearer {secret}"})
    assert asking.get("/api/v1/whoami").json()["scopes"] == ["read"]
    page = client.get("/user").content.decode()
    assert "laptop" in page
    assert secret not in page
    token = Token.objects.get(name="laptop")
    assert token.last_used_at is not None
    assert client.post(f"/user/tokens/{token.pk}/revoke")["Location"] == "/user?done=revoked"
    assert asking.get("/api/v1/whoami").status_code == 401
    assert "is revoked" in client.get("/user?done=revoked").content.decode()


@pytest.mark.parametrize(
    "sent",
    [
        {"name": ""}, {"name": "x" * 61}, {"name": "a\x07b"}, {"scopes": []}, {"scopes": ["root"]},
        {"scopes": ["admin"]}, {"days": "0"}, {"days": "367"}, {"days": "-1"}, {"days": "1e9"}, {"days": "९"},
        {"days": ""}, {"days": "9" * 5000},
    ],
)  # fmt: skip
def test_what_no_token_can_be_is_refused_with_a_sentence(town: Town, sent: dict[str, object]) -> None:
    client, before = browser(town.owner.user), Token.objects.count()
    answer = client.post("/user/tokens", {"name": "laptop", "scopes": ["read"], "days": "30", **sent})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()
    assert Token.objects.count() == before


def test_only_staff_make_tokens_with_the_scope_admin(town: Town) -> None:
    assert 'value="admin"' not in browser(town.owner.user).get("/user").content.decode()
    made(browser(town.staff.user), scopes=["read", "admin"])


def test_the_number_of_tokens_is_bounded(town: Town) -> None:
    assert town.owner.user is not None
    for number in range(service.MOST_TOKENS - Token.objects.filter(user=town.owner.user).count()):
        service.make_token(town.owner.user, f"token {number}")
    answer = browser(town.owner.user).post("/user/tokens", {"name": "x", "scopes": ["read"], "days": "1"})
    assert answer.status_code == 422
    assert "revoke one first" in answer.content.decode()


def test_nobody_sees_or_revokes_anothers_token(town: Town) -> None:
    made(browser(town.owner.user))
    token = Token.objects.get(name="laptop")
    for person in (town.stranger, town.staff):
        client = browser(person.user)
        assert "laptop" not in client.get("/user").content.decode()
        assert client.post(f"/user/tokens/{token.pk}/revoke").status_code == 404
    assert Token.objects.filter(pk=token.pk).exists()


def test_nothing_is_done_by_get_by_a_stranger_or_without_the_csrf_token(town: Town) -> None:
    client = browser(town.owner.user, enforce_csrf_checks=True)
    for path in ACTS:
        assert client.get(path).status_code == 405
        assert client.post(path).status_code == 403
        assert Client().post(path)["Location"].startswith("/sign-in")
    assert Client().get("/user")["Location"].startswith("/sign-in")


def test_a_password_is_set_changed_and_guarded(town: Town) -> None:
    user = town.owner.user
    assert user is not None
    client, elsewhere = browser(user), browser(user)
    assert 'name="old"' not in client.get("/user").content.decode(), "who has none gives none"
    assert client.post("/user/password", {"new": PASSWORD, "again": PASSWORD})["Location"] == "/user?done=password"
    assert client.get("/user").status_code == 200, "this browser stays"
    assert elsewhere.get("/user").status_code == 302, "every other is signed out"
    good = {"old": PASSWORD, "new": OTHER, "again": OTHER}
    for wrong, said in (
        ({"new": "short", "again": "short"}, "too short"),
        ({"again": "differs"}, "differ"),
        ({"new": "moderncombat", "again": "moderncombat"}, "too common"),
        ({"new": "x" * 5000, "again": "x" * 5000}, "at most"),
        ({"old": "wrong"}, "not your password"),
    ):
        answer = client.post("/user/password", {**good, **wrong})
        assert (answer.status_code, said in answer.content.decode()) == (422, True), said
    assert client.post("/user/password", good)["Location"] == "/user?done=password"
    assert Client().post("/sign-in", {"username": "owner", "password": OTHER}).status_code == 302
    answers = [client.post("/user/password", {**good, "old": "wrong"}).status_code for _ in range(11)]
    assert (answers[0], answers[-1]) == (422, 429), "a stolen session does not guess either"


def test_signing_out_everywhere_leaves_this_browser_and_other_people(town: Town) -> None:
    here, there, other = browser(town.owner.user), browser(town.owner.user), browser(town.mate.user)
    assert here.post("/user/sign-out-everywhere")["Location"] == "/user?done=signed-out"
    assert [client.get("/user").status_code for client in (here, there, other)] == [200, 302, 200]


def test_every_page_leads_there_in_both_languages(town: Town) -> None:
    for language in ("en", "zh-hans"):
        client = browser(town.owner.user)
        client.post("/language", {"language": language})
        assert 'href="/user"' in client.get("/").content.decode()
        page = client.get("/user").content.decode()
        assert ("Access tokens" in page) == (language == "en")
        assert "default" in page


def test_a_token_can_neither_read_nor_use_the_page(town: Town) -> None:
    assert Person(town.owner.user).client.get("/user").status_code == 302
