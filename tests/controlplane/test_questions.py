"""Questions to the engine: bounded, shared, and thought about in a process that may end at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from django.core.cache import cache
from django.core.cache.backends.redis import RedisCache
from django.db import connection

from controlplane.accounts.models import User
from controlplane.whatif import questions, tasks, thinker
from controlplane.whatif.messages import Reply
from controlplane.whatif.questions import NotAnswered, Question, ask
from tests.controlplane.people import Town

ECHO = Question("echo", dict, is_personal=False)
OWN = Question("own", dict)


@pytest.fixture
def person(db: None) -> Iterator[User]:
    cache.clear()
    yield User.objects.create(username="asker")
    cache.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was sent to a worker; nobody answers."""
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tasks.answer, "apply_async", lambda args, **_: sent.append(args))
    monkeypatch.setattr(questions, "WAIT_S", 0.2)
    return sent


def answered(args: tuple[Any, ...], answer: bytes = b'{"a": 1}') -> None:
    """Does what the worker does at the end."""
    _name, _params, _language, key, fresh_s, slots = args
    questions.release(slots)
    questions.put(key, Reply(msgspec.Raw(answer)), fresh_s)


def test_an_answer_is_given_again_to_everybody(person: User, asked: list[Any]) -> None:
    with pytest.raises(NotAnswered) as refused:
        ask(ECHO, {"n": 1}, person)
    assert (refused.value.status, refused.value.code) == (503, "busy")
    answered(asked[0])
    other = User.objects.create(username="other")
    assert ask(ECHO, {"n": 1}, person) == ask(ECHO, {"n": 1}, other) == {"a": 1}
    assert len(asked) == 1


def test_a_personal_answer_is_for_one_person(person: User, asked: list[Any]) -> None:
    with pytest.raises(NotAnswered):
        ask(OWN, {}, person)
    answered(asked[0])
    with pytest.raises(NotAnswered):
        ask(OWN, {}, User.objects.create(username="other"))


def test_the_same_question_is_thought_about_once(person: User, asked: list[Any]) -> None:
    for _ in range(3):
        with pytest.raises(NotAnswered):
            ask(ECHO, {"n": 1}, person)
    assert len(asked) == 1


def test_one_person_has_one_in_flight_and_the_cluster_two(person: User, asked: list[Any]) -> None:
    people = [person, *(User.objects.create(username=f"u{n}") for n in range(3))]
    for n, one in enumerate([*people, *people]):
        with pytest.raises(NotAnswered):
            ask(ECHO, {"n": n}, one)
    assert len(asked) == questions.AT_ONCE
    assert {args[5][0] for args in asked} == {f"questions-of:{one.pk}:0" for one in people[:2]}
    answered(asked[0])
    with pytest.raises(NotAnswered):
        ask(ECHO, {"n": 99}, people[3])
    assert len(asked) == questions.AT_ONCE + 1


def test_who_waits_for_many_waits_for_no_more(
    transactional_db: None, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.clear()
    person = User.objects.create(username="asker")
    monkeypatch.setattr(questions, "WAIT_S", 5.0)
    codes: list[str] = []

    def wait(n: int) -> None:
        try:
            ask(ECHO, {"n": n}, person)
        except NotAnswered as refused:
            codes.append(refused.code)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(questions.MOST_WAITING_EACH + 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == sorted(["busy"] * questions.MOST_WAITING_EACH + ["too_many_questions"] * 3)


def test_a_fault_is_told_and_soon_asked_again(person: User, asked: list[Any]) -> None:
    with pytest.raises(NotAnswered):
        ask(ECHO, {}, person)
    questions.put(asked[0][3], Reply(fault="the process that thought about it ended"), 600)
    with pytest.raises(NotAnswered, match="ended"):
        ask(ECHO, {}, person)
    assert 0 < cache._cache.get_client().ttl(cache.make_key(asked[0][3])) <= 2


def test_without_redis_it_is_said_and_jobs_are_accepted(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    monkeypatch.setattr(questions, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
    answer = town.owner.post("/jobs?dry_run=placement", {"name": "trial", "run": "true"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert town.owner.post("/jobs", {"name": "real", "run": "true"}).status_code == 201


def test_the_values_of_variables_go_nowhere(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    sent: list[Any] = []
    real = tasks.answer.apply_async
    monkeypatch.setattr(tasks.answer, "apply_async", lambda args, **more: (sent.append(args), real(args, **more)))
    spec = {"name": "a", "run": "true", "env": {"HF_TOKEN": "canary", "N": "canary"}}
    assert town.owner.post("/jobs?dry_run=placement", spec).status_code == 200
    assert "HF_TOKEN" in str(sent)
    assert "canary" not in str(sent)


@pytest.fixture
def own(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[thinker.Thinker]:
    """A real process, on the database of this test."""
    place = urlsplit(os.environ["DATABASE_URL"])
    monkeypatch.setenv("DATABASE_URL", place._replace(path=f"/{connection.settings_dict['NAME']}").geturl())
    made = thinker.Thinker()
    yield made
    made.close()


def test_a_real_process_answers_is_kept_and_started_again_when_it_was_killed(own: thinker.Thinker) -> None:
    params = {"spec": {"name": "a", "run": "true"}, "user": User.objects.create(username="u").pk}
    first = own.think("consolidation", {}, "en")
    assert not first.fault, first.fault
    process = own._process
    assert process is not None
    assert own.think("consolidation", {}, "en").fault == ""
    assert own._process is process
    process.kill()
    process.wait()
    assert own.think("consolidation", {}, "en").fault == ""
    assert own._process is not process
    assert "InvalidSpec" in own.think("dry_run", params, "en").fault, "there is no project, and it says so"


def test_one_that_thinks_for_too_long_is_ended(own: thinker.Thinker, monkeypatch: pytest.MonkeyPatch) -> None:
    own.think("consolidation", {}, "en")
    process = own._process
    assert process is not None
    monkeypatch.setattr(thinker, "LONGEST_S", 0)
    with pytest.raises(thinker.NoAnswer, match="longer"):
        own.think("consolidation", {}, "en")
    assert process.poll() is not None
