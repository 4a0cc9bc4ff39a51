"""What nodes fetch from each other tells how fast the line between them is: kept by pair, bounded, and planned with."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from agents.protocol import MEASURED, Fetched, LinkOrder
from agents.storage.peers import ticket
from controlplane.fleet import node_links, world
from controlplane.fleet.models import Kept, Node, NodeLink
from controlplane.pools.models import Pool
from tests.record.yard import Agent, Yard, cpu

MIB = 1 << 20


def links(name: str) -> dict[str, float]:
    by_id = {node.id: node.name for node in world.nodes()}
    (found,) = [node.links for node in world.nodes() if node.name == name]
    return {by_id[peer]: gbps for peer, gbps in found.items()}


def test_a_transfer_tells_of_the_line_from_its_sender(yard: Yard) -> None:
    a, b = (yard.agent(name, cpu(name)) for name in "ab")
    yard.store.load(0.0)
    node_links.note(a.node, [Fetched(10**10, 10.0, "b")])
    assert links("a") == {"b": 8.0}
    assert links("b") == {}
    yard.check_feed(0.0)
    node_links.note(a.node, [Fetched(10**9, 0.9, "b")])
    assert links("a") == {"b": 8.0}, "it wavers"
    node_links.note(a.node, [Fetched(10**10, 1.0, "b")] * 9)
    assert links("a") == {"b": 2**6.5}
    yard.check_feed(0.0)
    b.node.delete()
    yard.check_feed(0.0)
    assert links("a") == {}


def serving(yard: Yard, *names: str) -> list[Agent]:
    """Nodes from which others may fetch."""
    agents = [yard.agent(name, cpu(name)) for name in names]
    for agent in agents:
        Kept.objects.update_or_create(
            node=agent.node, defaults={"digests": [], "url": f"https://{agent.node.name}", "key": "k"}
        )
    return agents


def order(agent: Agent) -> LinkOrder | None:
    agent.look()
    assert agent.desired is not None
    return agent.desired.measure


def test_idle_nodes_measure_each_other_where_their_pool_asks_for_it(yard: Yard) -> None:
    a, b = serving(yard, "a", "b")
    now = timezone.now()
    assert node_links.assign(now) == 0, "nobody asked for it"
    Pool.objects.update(measure_links=True)
    Node.objects.filter(id=b.node.id).update(load=0.5)
    assert node_links.assign(now) == 0, "who is busy is left alone"
    Node.objects.update(load=0.0)
    assert node_links.assign(now) == 1, "one of a pair measures, the other is measured"
    one, other = (a, b) if order(a) else (b, a)
    found = order(one)
    assert found is not None
    assert (found.node, found.url) == (other.node.name, f"https://{other.node.name}")
    assert found.ticket == ticket("k", MEASURED)
    assert order(other) is None
    assert node_links.assign(now) == 0
    node_links.note(Node.objects.get(id=one.node.id), [Fetched(64 * MIB, 0.1, other.node.name)])
    assert order(one) is None, "it was done"
    later = now + node_links.EVERY + timedelta(seconds=1)
    assert node_links.assign(later) == 1, "the other direction"
    assert Node.objects.get(id=other.node.id).measures_from_id == one.node.id
    node_links.note(Node.objects.get(id=other.node.id), [Fetched(64 * MIB, 0.1, one.node.name)])
    assert node_links.assign(later + node_links.EVERY + timedelta(seconds=1)) == 0, "not again within a day"
    assert node_links.assign(now + node_links.AGAIN + timedelta(hours=1)) == 1


def test_an_order_that_nobody_answers_is_dropped(yard: Yard) -> None:
    a, b = serving(yard, "a", "b")
    Pool.objects.update(measure_links=True)
    long_ago = timezone.now() - node_links.ANSWERED_WITHIN - timedelta(seconds=1)
    assert node_links.assign(long_ago) == 1
    assert (order(a), order(b)) == (None, None)


def test_nonsense_tells_nothing(yard: Yard) -> None:
    a = yard.agent("a", cpu("a"))
    yard.agent("b", cpu("b"))
    node_links.note(
        a.node,
        [
            Fetched(10**10, 10.0, "nobody"), Fetched(10**10, 10.0, "a"), Fetched(10**10, 10.0),
            Fetched(1 << 50, 1.0, "b"), Fetched(10**9, 0.0, "b"), Fetched(10**9, -1.0, "b"),
        ],
    )  # fmt: skip
    assert not NodeLink.objects.exists()


def test_only_the_newest_pairs_of_a_node_are_kept(yard: Yard, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(node_links, "MOST", 2)
    a = yard.agent("a", cpu("a"))
    for name in "bcd":
        yard.agent(name, cpu(name))
        node_links.note(a.node, [Fetched(256 * MIB, 1.0, name)])
        NodeLink.objects.filter(target=a.node).update(at=Node.objects.get(name=name).created_at - timedelta(days=1))
    assert set(links("a")) == {"c", "d"}
