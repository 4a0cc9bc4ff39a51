"""The guard against guessing: one for every door and all processes, emptied by nobody, and no way to lock out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.contrib.auth import authenticate
from django.core.cache import cache
from django.db import connections
from django.db.models import F
from django.test import Client, RequestFactory
from django.utils import timezone

from controlplane.accounts import guard, service
from controlplane.accounts.models import Tries, User

PASSWORD = "a long pass phrase"
HERE, THERE = "192.0.2.7", "198.51.100.9"


@pytest.fixture
def visitor(db: None) -> User:
    return User.objects.create_user("visitor", password=PASSWORD)


def sign(name: str = "visitor", password: str = "wrong", address: str = HERE, door: str = "/sign-in") -> int:
    return Client(REMOTE_ADDR=address).post(door, {"username": name, "password": password}).status_code


def later(**span: float) -> None:
    """Lets this much time have passed since all that was counted."""
    passed = timedelta(**span)
    Tries.objects.update(last_at=F("last_at") - passed, until=F("until") - passed)


def test_ten_failures_stop_the_guessing_for_names_that_are_and_names_that_are_not(visitor: User) -> None:
    for name in ("visitor", "nobody"):
        assert [sign(name) for _ in range(11)] == [401] * 10 + [429]
    assert sign(password=PASSWORD) == 429, "what is shut looks at no password"
    assert sign("Visitor", PASSWORD) == 429, "and takes no other spelling of the name"
    refused = Client(REMOTE_ADDR=HERE).post("/sign-in", {"username": "visitor", "password": PASSWORD})
    assert 0 < int(refused["Retry-After"]) <= guard.FIRST_S
    later(seconds=guard.FIRST_S)
    assert sign(password=PASSWORD) == 302


def test_the_administration_has_no_door_of_its_own(visitor: User) -> None:
    User.objects.filter(pk=visitor.pk).update(is_staff=True, is_superuser=True)
    to = Client().get("/admin/", follow=True)
    assert to.redirect_chain[-1] == ("/sign-in?next=%2Fadmin%2F", 302)
    for _ in range(12):
        client = Client(REMOTE_ADDR=HERE)
        answer = client.post("/admin/login/?next=/admin/", {"username": "visitor", "password": PASSWORD})
        assert (answer.status_code, answer["Location"]) == (302, "/sign-in?next=%2Fadmin%2F")
        assert "_auth_user_id" not in client.session
    client = Client()
    assert (
        client.post("/sign-in", {"username": "visitor", "password": PASSWORD, "next": "/admin/"})["Location"]
        == "/admin/"
    )
    assert client.get("/admin/").status_code == 200


def test_who_may_not_administer_is_told_so_and_not_sent_in_a_circle(visitor: User) -> None:
    client = Client()
    client.force_login(visitor)
    answer = client.get("/admin/", follow=True)
    assert answer.status_code == 403
    assert "You are signed in as visitor, who may not administer" in answer.content.decode()
    assert 'action="/sign-in"' in answer.content.decode()


def test_whatever_calls_authenticate_is_guarded(visitor: User) -> None:
    request = RequestFactory(REMOTE_ADDR=HERE).get("/")
    for _ in range(10):
        assert authenticate(request, username="visitor", password="wrong") is None
    assert authenticate(request, username="visitor", password=PASSWORD) is None
    assert authenticate(None, username="visitor", password=PASSWORD) == visitor, "from nowhere is another address"


def test_filling_empties_nothing(visitor: User) -> None:
    for _ in range(10):
        sign()
    for number in range(400):
        guard.admit(guard.Who(f"name-{number}", f"203.0.113.{number % 250}"))
    cache.clear()
    assert sign(password=PASSWORD) == 429


def test_a_stranger_elsewhere_locks_nobody_out(visitor: User) -> None:
    assert sign(password=PASSWORD) == 302, "so this address is known for this name"
    elsewhere = [guard.admit(guard.Who("visitor", f"203.0.{n // 200}.{n % 200}")) for n in range(150)]
    assert elsewhere[99] == 0
    assert min(elsewhere[100:]) > 0, "a name is not guessed at from a hundred addresses"
    assert sign(password=PASSWORD, address=THERE) == 429, "also not by its owner from where nobody knows them"
    assert sign(password=PASSWORD) == 302, "but from where they signed in before"
    Tries.objects.filter(of=Tries.Of.KNOWN).update(last_at=timezone.now() - guard.KNOWN_FOR)
    assert sign(password=PASSWORD) == 429
    link = service.make_sign_in_link(visitor)
    assert Client(REMOTE_ADDR=THERE).post(link).status_code == 302, "a link is no guess at a name"


def test_a_counter_shuts_for_longer_each_time_and_for_an_hour_at_most(visitor: User) -> None:
    one, waits = guard.Who("visitor", HERE), []
    for _ in range(20):
        while guard.admit(one) == 0:
            pass
        waits.append(guard.admit(one))
        later(seconds=waits[-1])
    assert waits[:6] == [60, 120, 240, 480, 960, 1920]
    assert set(waits[6:]) == {3600}
    later(days=1, seconds=1)
    assert [guard.admit(one) for _ in range(10)] == [0] * 10, "a day without a failure forgets"
    assert guard.admit(one) > 0


def test_a_good_sign_in_does_not_clear_what_an_address_guessed_at_others(visitor: User) -> None:
    guesses = 0
    for number in range(guard.FREE[Tries.Of.ADDRESS] + 20):
        if number % 5 == 0:
            sign(password=PASSWORD)
        guesses += guard.admit(guard.Who(f"victim-{number}", HERE)) == 0
    assert guesses <= guard.FREE[Tries.Of.ADDRESS]


def test_a_network_of_ipv6_is_one_address(visitor: User) -> None:
    def at(address: str) -> str:
        return guard.who(RequestFactory(REMOTE_ADDR=address).get("/"), "visitor").address

    assert at("2001:db8:1:2::1") == at("2001:db8:1:2:ffff::2") != at("2001:db8:1:3::1")
    assert at("::ffff:192.0.2.7") == at(HERE) == HERE


def test_links_are_not_guessed_at_either(visitor: User) -> None:
    client = Client(REMOTE_ADDR=HERE)
    answers = [client.get(f"/sign-in/{number}").status_code for number in range(101)]
    assert answers == [410] * 100 + [429]
    assert client.get(service.make_sign_in_link(visitor)).status_code == 429
    assert client.post(service.make_sign_in_link(visitor)).status_code == 429
    assert Client(REMOTE_ADDR=THERE).post(service.make_sign_in_link(visitor)).status_code == 302


def test_many_at_once_are_no_more_than_many(transactional_db: None) -> None:
    def guess(number: int) -> int:
        try:
            return guard.admit(guard.Who("visitor", HERE))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert sum(wait == 0 for wait in pool.map(guess, range(40))) == 10


def test_what_is_old_is_forgotten_and_no_name_is_kept(visitor: User) -> None:
    sign()
    sign(password=PASSWORD)
    assert "visitor" not in repr(list(Tries.objects.values()))
    assert guard.forget_old() == 0
    later(days=2)
    assert guard.forget_old() == 3
    later(days=90)
    assert guard.forget_old() == 1
    assert not Tries.objects.exists()


def test_no_password_is_taken_over_rest(visitor: User) -> None:
    import base64

    basic = base64.b64encode(f"visitor:{PASSWORD}".encode()).decode()
    assert Client(headers={"authorization": f"Basic {basic}"}).get("/api/v1/whoami").status_code == 401


def test_unknown_names_and_such_without_a_password_cost_one_hash_too(
    visitor: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.auth.hashers import MD5PasswordHasher

    hashed = []
    monkeypatch.setattr(MD5PasswordHasher, "encode", lambda self, password, salt: hashed.append(1) or "md5$x$y")
    User.objects.create_user("linked")
    User.objects.create_user("away", password=PASSWORD, is_active=False)
    for name in ("visitor", "nobody", "linked", "away", "x" * 200, "a\x00b"):
        hashed.clear()
        assert authenticate(RequestFactory(REMOTE_ADDR=name[:3]).get("/"), username=name, password="wrong") is None
        assert len(hashed) >= 1, name
