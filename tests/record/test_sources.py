"""Who may fetch what from whom: only what a node's own stages read, and a source is loaded by one node at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.protocol import AskSources, Input, Kept, Output, Phase, Sources
from agents.storage.peers import ticket
from controlplane.dispatch import peer_sources
from controlplane.dispatch.peer_tickets import ticket as ours
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Fetch
from controlplane.jobs.models import Job
from controlplane.jobs.models import Output as OutputRow
from controlplane.jobs.spec import InvalidSpec
from tests.record.yard import Agent, Yard, stage

A, B = "a" * 64, "b" * 64
RAW = {"source": "https://example.org/raw.bin", "sha256": A}
FLOW: list[dict[str, Any]] = [
    {"name": "prep", "run": "true", "outputs": ["tokens"]},
    {"name": "train", "needs": ["prep"], "run": "true", "inputs": [{"from": "prep", "output": "tokens"}]},
]


@pytest.fixture
def apart(db: None) -> Yard:
    """A pool without a shared disk."""
    return Yard(storage="")


def reads(agent: Agent) -> list[Input]:
    (order,) = [order for order in agent.look() if order.spec is not None]
    assert order.spec is not None
    return order.spec.inputs


def complete(yard: Yard, agent: Agent, job: Job, digest: str = B) -> None:
    """Run prep on this agent to its end, with an output."""
    yard.cycle()
    assert agent.start() == ["prep"]
    agent.set(stage(job, "prep"), Phase.ENDED, exit=None, outputs=[Output("tokens", digest, 12, 3)])


def ask(agent: Agent, digest: str, *failed: str) -> Sources | None:
    return peer_sources.answer(agent.node, AskSources(digest, list(failed)))


def test_a_ticket_is_the_same_on_both_sides() -> None:
    assert ours("key", A) == ticket("key", A)


def test_a_source_with_its_digest_reaches_the_agent(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(inputs=[{**RAW, "shard": True}, {"source": "/nfs/set/", "sha256": B, "path": "set"}])
    yard.cycle()
    assert reads(agent) == [
        Input("raw.bin", A, kind="file", source=RAW["source"], shard=True),
        Input("set", B, source="/nfs/set/"),
    ]


def test_an_output_reaches_the_stage_that_needs_it_by_digest_or_by_path(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(stages=FLOW)
    complete(yard, agent, job)
    row = OutputRow.objects.get()
    assert (row.stage.name, row.name, row.digest, row.size_bytes, row.files) == ("prep", "tokens", B, 12, 3)
    yard.cycle()
    assert reads(agent) == [Input("prep/tokens", B, path=f"/shared/{job.number}/outputs/prep/tokens")]


def test_without_a_shared_disk_only_outputs_by_digest_free_a_stage_from_its_node(apart: Yard) -> None:
    a, b = apart.agent("a"), apart.agent("b")
    job = apart.submit(stages=FLOW)
    apart.cycle()
    maker, other = (a, b) if a.look() else (b, a)
    maker.start()
    maker.set(stage(job, "prep"), Phase.ENDED, exit=None, outputs=[Output("tokens", B, 12)])
    fleet.drain(maker.node, "test", "so that only the other node is left")
    apart.cycle()
    assert other.look() == []
    fleet.note_kept(maker.node, Kept([B], "http://127.0.0.1:9", "key"))
    apart.cycle()
    assert reads(other) == [Input("prep/tokens", B)]
    told = ask(other, B)
    assert told is not None
    assert [(peer.node, peer.url, peer.ticket) for peer in told.peers] == [
        (maker.node.name, "http://127.0.0.1:9", ticket("key", B))
    ]
    again = ask(other, B, maker.node.name)
    assert again is not None
    assert "run the stage that made it again" in again.refused


def test_a_node_learns_nothing_of_what_it_does_not_read(apart: Yard) -> None:
    a, b = apart.agent("a"), apart.agent("b")
    apart.submit(inputs=[RAW])
    apart.cycle()
    reader, stranger = (a, b) if a.look() else (b, a)
    fleet.note_kept(stranger.node, Kept([A], "http://127.0.0.1:9", "key"))
    assert ask(stranger, A) is None
    assert ask(reader, B) is None
    told = ask(reader, A)
    assert told is not None
    assert [peer.node for peer in told.peers] == [stranger.node.name]


def test_one_node_at_a_time_is_appointed_and_the_next_when_it_is_silent(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    yard.submit(nodes=2, inputs=[RAW])
    yard.cycle()
    first, second = ask(a, A), ask(b, A)
    assert first is not None
    assert second is not None
    assert (first.is_appointed, second.is_appointed) == (True, False)
    assert peer_sources.appoint(a.node.id, A)
    Fetch.objects.update(until="2000-01-01T00:00:00Z")
    assert peer_sources.appoint(b.node.id, A)
    assert not peer_sources.appoint(a.node.id, A)


def test_what_is_planned_is_fetched_ahead(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(name="now", cpus=2, time_limit="10m", expected="10m")
    yard.submit(name="next", cpus=2, time_limit="10m", inputs=[RAW])
    yard.cycle()
    agent.start()
    yard.cycle()
    agent.look()
    assert agent.desired is not None
    assert agent.desired.prefetch == [Input("raw.bin", A, kind="file", source=RAW["source"])]
    told = ask(agent, A)
    assert told is not None
    assert told.is_appointed


def test_a_report_says_what_a_node_keeps_and_strange_words_in_it_are_left_out(yard: Yard) -> None:
    agent = yard.agent("a")
    fleet.note_kept(agent.node, Kept([A, "../../x", ""], "file:///etc", "k" * 500))
    kept = agent.node.kept
    assert (kept.digests, kept.url, len(kept.key)) == ([A], "", 64)


@pytest.mark.parametrize(
    ("stages", "pointer", "words"),
    [
        ([{**FLOW[0], "inputs": [{"source": "raw.bin", "sha256": A}]}], "/stages/0/inputs/0/source", "absolute path"),
        ([{**FLOW[0], "inputs": [{"source": "/x/y"}]}], "/stages/0/inputs/0/sha256", "never served stale"),
        ([{**FLOW[0], "inputs": [{**RAW, "path": "../x"}]}], "/stages/0/inputs/0/path", "relative path"),
        ([{**FLOW[0], "inputs": [RAW, RAW]}], "/stages/0/inputs/1/path", "two inputs are called"),
        ([{**FLOW[0], "outputs": ["a/b"]}], "/stages/0/outputs/0", "is a path: an output"),
        ([FLOW[0], {**FLOW[1], "needs": []}], "/stages/1/inputs/0/from", "not among the stages that it needs"),
        ([{"name": "prep", "run": "true"}, FLOW[1]], "/stages/1/inputs/0/output", "has no output"),
    ],
)
def test_a_flow_that_cannot_be_is_refused_with_what_would_do(
    yard: Yard, stages: list[dict[str, Any]], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        yard.submit(stages=stages)
    assert [(fault.pointer, words in fault.detail) for fault in refused.value.errors] == [(pointer, True)]


def test_the_door_is_for_nodes_only(client: Any, yard: Yard) -> None:
    agent = yard.agent("a")
    body = msgspec.json.encode(AskSources(A))
    path = "/agent/v1/sources"
    assert client.post(path, body, content_type="application/json").status_code == 401
    forged = {"Authorization": f"Node {agent.node.id}:guessed"}
    assert client.post(path, body, content_type="application/json", headers=forged).status_code == 401
