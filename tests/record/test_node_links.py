"""What nodes fetch from each other tells how fast the line between them is: kept by pair, bounded, and planned with."""

from __future__ import annotations

from datetime import timedelta

from agents.protocol import Fetched
from controlplane.fleet import node_links, world
from controlplane.fleet.models import Node, NodeLink
from tests.record.yard import Yard, cpu

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
