"""A stage with an image goes where a container engine answers, and nowhere else."""

from __future__ import annotations

from controlplane.whatif.dry_run import dry_run
from tests.record.yard import Agent, Yard, stage, states

IMAGE = "registry.local/pytorch:2.9"
SAID = "its image cannot be fetched: no node of pool default with 1 core 1 GiB has a container engine"


def reports(agent: Agent, engine: str | None) -> None:
    agent.container_engine = engine
    agent.report()


def test_without_an_engine_it_waits_and_says_so_until_one_answers(yard: Yard) -> None:
    agent = yard.agent("a")
    reports(agent, "")
    plain, boxed = yard.submit(), yard.submit(image=IMAGE)
    yard.cycle()
    assert agent.start() == ["main"]
    assert (states(plain)["main"], states(boxed)["main"]) == ("RUNNING", "PENDING")
    assert [(one["code"], one["text"]) for one in stage(boxed).reasons] == [("ImageUnavailable", SAID)]
    reports(agent, "podman 5.4.0 (rootless)")
    yard.cycle()
    assert agent.start() == ["main"]
    assert states(boxed)["main"] == "RUNNING"


def test_of_two_nodes_it_takes_the_one_with_an_engine(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    reports(a, "")
    reports(b, "docker 28.1 (as root)")
    for _ in range(2):
        yard.submit(image=IMAGE)
    yard.cycle()
    assert (a.start(), b.start()) == ([], ["main", "main"])


def test_an_agent_that_does_not_look_for_engines_is_given_the_benefit(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(image=IMAGE)
    yard.cycle()
    assert agent.start() == ["main"]


def test_the_dry_run_says_it_in_the_same_sentence(yard: Yard) -> None:
    agent = yard.agent("a")
    reports(agent, "")
    told = dry_run({"name": "job", "run": "true", "image": IMAGE}, yard.user)
    assert told["verdict"] == "queued"
    assert [one["text"] for one in told["stages"][0]["reasons"]] == [SAID]
    assert ["with a container engine", 0] in told["stages"][0]["funnel"]
