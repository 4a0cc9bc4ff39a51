"""A job on a card of the stand-in library ends when the card is empty again, and its history says what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.test_returned import GIB, Cards
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on

pytestmark = pytest.mark.chaos


@pytest.fixture
def yard() -> Iterator[Yard]:
    with standing() as up:
        up.started()
        yield from on(up)


def test_the_end_of_a_job_waits_for_its_card_and_its_history_tells_the_figures(
    yard: Yard, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = Cards(tmp_path, compiler)
    with monkeypatch.context() as environment:
        # The stack's own agent, which runs already, sees no card: they would be its own.
        for name, value in cards.environment.items():
            environment.setenv(name, value)
        yard.agent("cards")
    assert eventually(lambda: any(d["uuid"] == "GPU-a" and d["sample"] for d in yard.client.devices(node="cards")))
    go = cards.state.with_name("go")
    script = f"until [ -e {go} ]; do sleep 0.05; done"
    job = yard.client.jobs.submit({"name": "holds", "run": script, "devices": {"kind": "gpu", "count": 2}})
    yard.until(job, "main", lambda stage: stage["state"] == "RUNNING")
    cards.hold(21)
    assert eventually(
        lambda: any(
            d["uuid"] == "GPU-a" and d["sample"] and d["sample"]["memory_used_bytes"] == 21 * GIB
            for d in yard.client.devices(node="cards")
        )
    )
    go.touch()
    assert eventually(lambda: "20.0 GiB of its devices are not free yet" in yard.stage(job, "main")["substate"])
    assert yard.stage(job, "main")["state"] == "RUNNING"
    cards.hold(1)
    assert job.wait(240).state == "COMPLETED"
    (attempt,) = yard.client.jobs.attempts(job)
    found = {each["uuid"]: each for part in attempt["parts"] for each in part["released"]}
    told = found["GPU-a"]
    assert (told["before_bytes"], told["most_bytes"], told["left_bytes"], told["is_back"]) == (GIB, 21 * GIB, GIB, True)
    assert found["GPU-b"]["is_back"] is True
    (fact,) = [event["text"] for event in yard.client.jobs.events(job) if event["kind"] == "released"]
    assert fact.startswith("main gave its memory back: GPU-a had 21.0 GiB in use, 1.0 GiB ")
