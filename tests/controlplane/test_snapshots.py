"""What many watch is made once for all who see the same, and nobody gets what was made for others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from controlplane import changes
from controlplane.accounts.models import Member, User
from controlplane.queries import snapshots
from controlplane.queries.snapshots import AudienceChanged, Delta, Shared, TopicSource
from tests.controlplane.people import Town

Made = list[str]


class Maker:
    """A source that counts how often it was made, and for whom."""

    def __init__(self, **more: Any) -> None:
        self.made: Made = []
        self.parts: dict[str, str] = {"a": "1", "b": "1"}
        self.source = TopicSource("/what", self._make, ("facts",), **more)
        self.before: Callable[[], None] = lambda: None

    def _make(self, user: User) -> dict[str, str]:
        self.before()
        self.made.append(user.get_username())
        return dict(self.parts)


@pytest.fixture(autouse=True)
def empty(town: Town) -> None:
    snapshots._redis().flushdb()


def change() -> None:
    snapshots._redis().incr(changes.counter("facts"))
    snapshots._redis().delete(*(snapshots._redis().keys("yard:live:*:lock") or [b"none"]))


def shown(deltas: list[Delta]) -> list[tuple[str, dict[str, Any]]]:
    """Each as delta or whole, with its parts."""
    parts = [{name: json.loads(bytes(part)) for name, part in one.parts.items()} for one in deltas]
    return [("delta" if one.since else "whole", part) for one, part in zip(deltas, parts, strict=True)]


def test_one_is_made_for_all_who_see_the_same(town: Town) -> None:
    maker = Maker()
    for _ in range(3):
        for person in (town.owner, town.mate, town.stranger, town.staff):
            assert person.user
            Shared.of(maker.source, person.user).now()
    assert maker.made == ["owner", "stranger", "ada"]


def test_what_all_see_is_made_once_for_all(town: Town) -> None:
    maker = Maker(is_for_all=True)
    for person in (town.owner, town.stranger, town.staff):
        assert person.user
        Shared.of(maker.source, person.user).now()
    assert maker.made == ["owner"]


def test_a_change_is_told_by_what_differs(town: Town) -> None:
    assert town.owner.user
    assert town.mate.user
    maker = Maker()
    one, other = Shared.of(maker.source, town.owner.user), Shared.of(maker.source, town.mate.user)
    first = one.now().cursor
    assert other.now().cursor == first
    assert shown(other.since("")) == [("whole", {"a": 1, "b": 1})]
    for number in (2, 3):
        maker.parts["a"] = str(number)
        change()
        one.look()
    assert maker.made == ["owner"] * 3
    other.look()
    assert shown(other.since(first)) == [("delta", {"a": 2}), ("delta", {"a": 3})]
    assert other.since(other.now().cursor) == []
    assert [kind for kind, _parts in shown(other.since("elsewhere.7"))] == ["whole"], "whoever has a gap gets the whole"
    del maker.parts["b"]
    change()
    one.look()
    other.look()
    assert other.since(first)[-1].gone == ["b"]
    assert [len(Shared.of(maker.source, town.mate.user).poll(first))] == [3], "one who asks once has them from Redis"


def test_nothing_new_is_no_new_snapshot(town: Town) -> None:
    assert town.owner.user
    maker = Maker()
    one = Shared.of(maker.source, town.owner.user)
    first = one.now().cursor
    change()
    one.look()
    assert (len(maker.made), one.now().cursor) == (2, first)


def test_while_one_makes_it_the_others_wait(town: Town) -> None:
    assert town.owner.user
    user, maker = town.owner.user, Maker(is_for_all=True)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        assert go_on.wait(60)

    maker.before = slowly
    found: list[str] = []

    def look() -> None:
        found.append(Shared.of(maker.source, user).now().cursor)
        connections.close_all()

    threads = [threading.Thread(target=look) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    assert Shared.of(maker.source, user).look() == snapshots.LOOK_S
    go_on.set()
    for thread in threads:
        thread.join()
    assert (len(maker.made), len(set(found))) == (1, 1)


def test_between_two_it_rests(town: Town) -> None:
    assert town.owner.user
    maker = Maker(every_s=30.0)
    one = Shared.of(maker.source, town.owner.user)
    one.now()
    snapshots._redis().incr(changes.counter("facts"))
    assert 0 < one.look() <= 30
    assert len(maker.made) == 1


def test_what_was_made_while_rights_changed_is_nobodys(town: Town) -> None:
    assert town.owner.user
    user, maker = town.owner.user, Maker()
    maker.before = lambda: Member.objects.filter(user=user).delete() and None
    one = Shared.of(maker.source, user)
    with pytest.raises(AudienceChanged):
        one.now()
    assert one.snapshot is None
    assert snapshots._redis().keys("yard:live:*:whole") == []


def test_everything_in_redis_expires(town: Town) -> None:
    assert town.owner.user
    maker = Maker()
    one = Shared.of(maker.source, town.owner.user)
    one.now()
    maker.parts["a"] = "2"
    change()
    one.look()
    redis = snapshots._redis()
    keys = redis.keys("yard:live:*")
    assert len(keys) == 5  # type: ignore[arg-type]
    assert all(0 < redis.pttl(key) <= snapshots.KEEP_S * 1000 for key in keys)  # type: ignore[operator,union-attr]


def test_without_redis_each_makes_its_own(town: Town, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert town.owner.user
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    monkeypatch.setattr(snapshots, "_clients", {})
    maker = Maker()
    one = Shared.of(maker.source, town.owner.user)
    first = one.now().cursor
    maker.parts["a"] = "2"
    assert shown(one.poll(first)) == [("delta", {"a": 2})]
