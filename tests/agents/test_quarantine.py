"""A part that cannot be taken over is set aside with its reason; the others are taken over; a person has a way out."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from agents.protocol import AsideOrder, Phase, SetAside, Share
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import order

Names = Callable[[], str]


def aside(hands: Hands) -> list[SetAside]:
    report = hands.yard.side(hands.name).report
    return list(report.conditions.aside) if report is not None else []


def decide(hands: Hands, *orders: AsideOrder) -> None:
    with hands.yard.lock:
        hands.yard.side(hands.name).aside = list(orders)
    hands.yard.want(hands.name)


@pytest.fixture
def torn(hands: Hands, part: Names) -> tuple[str, str, tuple[int, int]]:
    """An agent that starts again and finds one part as it was, and of another a note that nobody can read."""
    hands.start()
    names = (part(), part())
    for name in names:
        hands.yard.want(hands.name, order(name, "sleep", "600"))
    seen = [hands.yard.phase(hands.name, name, Phase.RUNNING) for name in names]
    process = (seen[0].pid, seen[0].pid_start)
    hands.end()
    note = hands.state / "parts" / names[0] / "share.json"
    note.write_text('{"spec_rev": ' + "9" * 5000)
    with hands.yard.lock:
        hands.yard.side(hands.name).report = None
    hands.start()
    hands.yard.wait(lambda: aside(hands))
    return (*names, process)  # type: ignore[return-value]


def test_it_is_told_with_reason_age_and_folder_and_the_others_are_served(
    hands: Hands, part: Names, torn: tuple[str, str, tuple[int, int]]
) -> None:
    bad, good, process = torn
    (told,) = aside(hands)
    assert (told.part, told.tries) == (bad, 1)
    assert told.folder == str(hands.state / "parts" / bad)
    assert "Undecodable" in told.reason
    assert 0 <= told.age_s < 600
    assert procfs.is_alive(*process), "what runs goes on"
    assert hands.yard.phase(hands.name, good, Phase.RUNNING).exit is None
    fresh = part()
    hands.yard.want(hands.name, order(fresh, "true"))
    end = hands.yard.ended(hands.name, fresh).exit
    assert end is not None
    assert end.code == 0


def test_released_it_is_one_like_any_other(hands: Hands, torn: tuple[str, str, tuple[int, int]]) -> None:
    bad, _, process = torn
    decide(hands, AsideOrder(bad, "release", 1))
    hands.yard.wait(lambda: [told.tries for told in aside(hands)] == [2])
    # Tried, and in vain. The same order again is no other try; with the note mended another one is.
    note = hands.state / "parts" / bad / "share.json"
    note.write_text(json.dumps({"spec_rev": 7, "share": {"cpu_weight": 200}}))
    decide(hands, AsideOrder(bad, "release", 1))
    decide(hands, AsideOrder(bad, "release", 2))
    hands.yard.wait(lambda: not aside(hands))
    hands.yard.wait(lambda: hands.yard.side(hands.name).here[bad].spec_rev == 7)
    assert procfs.is_alive(*process)
    assert Share(cpu_weight=200).cpu_weight == 200


def test_discarded_it_ends_with_all_that_runs_of_it(hands: Hands, torn: tuple[str, str, tuple[int, int]]) -> None:
    bad, good, process = torn
    decide(hands, AsideOrder(bad, "discard", 2))
    decide(hands, AsideOrder("another", "discard", 1))
    decide(hands, AsideOrder(bad, "discard", 1))
    end = hands.yard.ended(hands.name, bad).exit
    assert end is not None
    assert end.cause == "SUPERVISOR_LOST"
    assert "an administrator gave it up" in end.detail
    assert not procfs.is_alive(*process)
    hands.yard.wait(lambda: not aside(hands))
    assert hands.yard.phase(hands.name, good, Phase.RUNNING).exit is None
