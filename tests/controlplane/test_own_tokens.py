"""One's own access tokens over the API: a token makes and revokes none that may do more than itself."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import service
from controlplane.accounts.models import AuditEntry, IdempotencyKey, Token
from tests.controlplane.people import Person, Town


def make(person: Person, status: int = 201, **ask: Any) -> Any:
    answer = person.post("/tokens", {"name": "nightly", **ask}, **{"idempotency-key": "k"})
    assert answer.status_code == status, answer.content
    return json.loads(answer.content)


def delete(person: Person, token: Any) -> Any:
    return person.client.delete(f"/api/v1/tokens/{token}")


def with_secret(secret: str) -> Person:
    person = Person(None)
    person.client = Client(headers={"authorization": f"Bearer {secret}"})
    return person


def test_a_token_is_made_shown_once_used_and_revoked(town: Town) -> None:
    made = make(town.owner, days=7)
    assert (made["scopes"], made["is_current"]) == (["read", "submit"], False)
    script = with_secret(made["secret"])
    assert script.read("/whoami")["user"] == "owner"
    listed = script.read("/tokens")["results"]
    assert [(one["name"], one["is_current"]) for one in listed] == [("nightly", True), ("test", False)]
    assert made["secret"] not in json.dumps(listed)
    assert delete(town.owner, made["id"]).status_code == 204
    assert script.get("/whoami").status_code == 401
    actions = [entry.action for entry in AuditEntry.objects.filter(action__startswith="token.").order_by("pk")]
    assert actions[-2:] == ["token.make", "token.revoke"]
    assert made["secret"] not in str(list(AuditEntry.objects.values()))
    assert not IdempotencyKey.objects.exists()


def test_nobody_sees_or_revokes_anothers(town: Town) -> None:
    made = make(town.owner)
    assert delete(town.stranger, made["id"]).status_code == 404
    assert delete(town.staff, made["id"]).status_code == 404
    assert [one["name"] for one in town.stranger.read("/tokens")["results"]] == ["test"]
    assert town.anonymous.get("/tokens").status_code == 401
    assert town.anonymous.post("/tokens", {"name": "x"}).status_code == 401
    assert Token.objects.filter(pk=made["id"]).exists()


@pytest.mark.parametrize(
    ("held", "asked", "status"),
    [
        (["read"], ["read"], 403),  # making one is no reading
        (["read", "submit"], ["read"], 201),
        (["read", "submit"], ["admin"], 403),
        (["submit"], ["read", "submit"], 403),
        (["read", "submit", "admin"], ["admin"], 201),
    ],
)
def test_a_token_makes_none_with_more_scopes(town: Town, held: list[str], asked: list[str], status: int) -> None:
    assert town.staff.user is not None
    before = Token.objects.count()
    make(Person(town.staff.user, *held), status, scopes=asked)
    assert Token.objects.count() == before + 1 + (status == 201)


def test_who_has_no_role_gets_no_admin_scope(town: Town) -> None:
    assert make(town.owner, 403, scopes=["admin"])["code"] == "scope_missing"


def test_a_token_revokes_none_that_may_do_more(town: Town) -> None:
    assert town.owner.user is not None
    weak = Person(town.owner.user, "submit")
    strong = Token.objects.filter(user=town.owner.user, scopes__contains=["admin"]).get()
    assert delete(weak, strong.pk).status_code == 403
    assert delete(town.owner, strong.pk).status_code == 204


def test_a_token_makes_none_that_outlives_it(town: Town) -> None:
    Token.objects.filter(user=town.owner.user).update(expires_at=timezone.now() + timedelta(days=3))
    assert make(town.owner, 403, days=4)["code"] == "outlives"
    made = Token.objects.get(pk=make(town.owner)["id"])
    assert made.expires_at <= timezone.now() + timedelta(days=3)


@pytest.mark.parametrize(
    "ask",
    [{"name": ""}, {"name": "a\x1b[2J"}, {"name": "x" * 61}, {"scopes": []}, {"scopes": ["root"]}, {"days": 0},
     {"days": 367}, {"user": "staff"}],
)  # fmt: skip
def test_what_is_no_token_is_refused(town: Town, ask: dict[str, Any]) -> None:
    make(town.owner, 400, **ask)
    assert Token.objects.filter(user=town.owner.user).count() == 1


def test_there_are_not_more_than_the_most(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_TOKENS", 2)
    make(town.owner)
    assert make(town.owner, 409)["code"] == "too_many"
