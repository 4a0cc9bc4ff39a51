"""A setup goes to every node with the command after it, and its failure is no failure of the command."""

from __future__ import annotations

from agents.protocol import Setup
from tests.record.yard import Yard, cpu, stage, states


def test_each_node_gets_the_setup_and_nothing_that_runs_without_it(yard: Yard) -> None:
    agents = [yard.agent(name, cpu(name)) for name in ("a", "b")]
    yard.submit(setup="make ready", run="go", nodes=2)
    yard.cycle()
    for agent in agents:
        (spec,) = [wanted.spec for wanted in agent.look() if wanted.spec is not None]
        assert (spec.argv, spec.setup) == ([], Setup("make ready", ["/bin/sh", "-c", "go"]))


def test_a_failed_setup_is_tried_again_only_where_the_file_names_it(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"))
    jobs = [yard.submit(setup="exit 3", retry={"max": 2, **on}) for on in ({}, {"on": ["setup_failed"]})]
    yard.cycle()
    agent.start()
    for job in jobs:
        agent.end(stage(job), code=3, cause="SETUP_FAILED")
    assert [states(job)["main"] for job in jobs] == ["FAILED", "PENDING"]
    failed = stage(jobs[0])
    assert (failed.cause, failed.exit_code) == ("SETUP_FAILED", 3)
