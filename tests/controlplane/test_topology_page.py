"""The drawings of topology: the cluster by domains, and the links of a node."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.fleet.models import Device, Node, NodeLink
from controlplane.pages import links_graph, topology
from controlplane.pools.models import Pool
from controlplane.queries import domains, shared
from tests.controlplane.people import Town


@pytest.fixture
def reader(town: Town) -> Client:
    client = Client()
    assert isinstance(town.stranger.user, User)
    client.force_login(town.stranger.user)
    return client


def label(**labels: dict[str, str]) -> None:
    for name, each in labels.items():
        Node.objects.filter(name=name).update(labels=each)


def test_nodes_stand_below_the_fastest_domain_that_they_share(town: Town) -> None:
    for name in ("a1", "a2", "b1", "c1", "d1"):
        town.machine(name)
    label(
        a1={"zone": "z", "rack": "r1", "switch": "s1", "link-gbps": "400"},
        a2={"zone": "z", "rack": "r1", "switch": "s1"},
        b1={"zone": "z", "rack": "r2"},
        c1={"rack": "r10"},
    )
    found = domains.found()
    placed = [(each.above, each.name, [node.name for node in each.nodes]) for each in found.domains]
    assert placed == [
        ("zone=z / rack=r1", "switch=s1", ["a1", "a2"]),
        ("zone=z", "rack=r2", ["b1"]),
        ("", "default", ["d1"]),
        ("", "rack=r10", ["c1"]),
    ]
    assert [node.gbps for each in found.domains for node in each.nodes] == [400.0, None, None, None, None]
    assert [each.name for each in domains.found(by="pool").domains] == ["default"]
    assert domains.found(pool="nowhere").domains == []


def test_measured_links_stand_by_domain_and_between_sites_by_site(town: Town, reader: Client) -> None:
    for name, labels in (("a1", {"rack": "r1"}), ("a2", {"rack": "r1"}), ("b1", {"rack": "r2", "site": "berlin"})):
        town.machine(name)
        Node.objects.filter(name=name).update(labels=labels)
    assert "measured-links" not in reader.get("/topology").content.decode()
    rows = {node.name: node for node in Node.objects.all()}
    now = timezone.now()
    for source, target, gbps in (("a1", "a2", 20.0), ("a2", "a1", 180.0), ("a1", "b1", 90.0)):
        NodeLink.objects.create(source=rows[source], target=rows[target], gbps=gbps, mean_gbps=gbps, at=now)
    told = [(one.source, one.target, one.pairs, one.slowest, one.from_node) for one in domains.found().links]
    assert told == [("rack=r1", "rack=r1", 2, 20.0, "a1"), ("rack=r1", "rack=r2", 1, 90.0, "a1")]
    Node.objects.filter(name="a1").update(labels={"rack": "r1", "site": "paris"})
    assert ("site=paris", "site=berlin") in {(one.source, one.target) for one in domains.found().links}
    assert "measured-links" in reader.get("/topology?by=pool").content.decode()
    Node.objects.filter(name="a2").delete()
    assert len(domains.found().links) == 1


def test_a_device_is_drawn_as_what_it_is(town: Town, reader: Client) -> None:
    agent = town.machine()
    town.machine("n2")
    town.running(agent, devices={"kind": "gpu", "count": 1})
    Device.objects.filter(uuid="GPU-n1-1").update(health="UNHEALTHY")
    Node.objects.filter(name="n2").update(state="LOST")
    (domain,) = domains.found().domains
    assert [[domains.look(device) for device in node.devices] for node in domain.nodes] == [
        ["busy", "bad"],
        ["na", "na"],
    ]
    text = reader.get("/topology").content.decode()
    assert "n1: READY, 1 allocated, 1 unhealthy" in text
    assert "n2: LOST, 2 no data" in text
    # Everybody sees what is busy, and nobody whose it is.
    assert "owner" not in text


def test_at_most_so_many_nodes_are_drawn_and_the_page_says_so(
    town: Town, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(3):
        town.machine(f"n{at}")
    monkeypatch.setattr(domains, "MOST_NODES", 2)
    answer = reader.get("/topology")
    assert (answer.context["shown"], answer.context["count"]) == (2, 3)


def test_the_page_asks_as_often_for_many_nodes_as_for_one(town: Town, reader: Client) -> None:
    town.machine()
    asked = []
    for _time in range(2):
        reader.get("/topology")
        with CaptureQueriesContext(connection) as queries:
            assert reader.get("/topology").status_code == 200
        asked.append(len(queries))
        nodes = [Node(name=f"m{at}", credential_digest=f"d{at}", state="READY") for at in range(40)]
        if not Node.objects.filter(name="m0").exists():
            Node.objects.bulk_create(nodes)
            Pool.objects.get(name="default").nodes.add(*nodes)
    assert asked[0] == asked[1]


def test_a_slow_drawing_is_shared_and_a_large_one_is_asked_for_more_rarely(
    town: Town, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.machine("n1")
    first = reader.get("/topology")
    assert first.context["every_s"] == 5
    assert "<svg" in first.content.decode()
    monkeypatch.setattr(topology, "FEW", 0)
    monkeypatch.setattr(shared, "QUICK_S", 0.0)
    assert reader.get("/topology").context["every_s"] == 30

    def never(*_given: str) -> None:
        raise AssertionError("it is drawn again")

    monkeypatch.setattr(topology, "_drawing", never)
    kept = reader.get("/topology", headers={"X-Yard-Part": "live"}).content.decode()
    assert "n1: READY" in kept
    assert "&lt;svg" not in kept
    with pytest.raises(AssertionError, match="drawn again"):
        reader.get("/topology?by=pool")


def link(peer: str, kind: str, gbps: float | None = None) -> dict[str, Any]:
    return {"peer": peer, "type": kind, "gbps": gbps}


def device(name: str, numa: int | None, *links: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "uuid": f"U-{name}", "numa": numa, "links": list(links)}


def test_each_link_is_one_line_of_its_sort() -> None:
    near = {
        "devices": [
            device("gpu0", 0, link("gpu1", "NVLINK", 900.0), link("host", "PCIE", 64.0)),
            device("gpu1", 0, link("gpu0", "NVLINK", 600.0), link("gpu2", "PXB")),
            device("gpu2", 1, link("gpu1", "PXB")),
        ]
    }
    drawn = links_graph.graph(near, {"U-gpu0": "busy", "U-gpu1": "free"})
    assert drawn is not None
    assert {line["sort"]: line["d"].count("M") for line in drawn["lines"]} == {"host": 1, "switched": 1, "fast": 1}
    assert [(kind["name"], kind["count"], kind["most"]) for kind in drawn["kinds"]] == [
        ("NVLINK", 1, 600.0),
        ("PCIE", 1, 64.0),
        ("PXB", 1, None),
    ]
    assert [one["name"] for one in drawn["shared"]] == ["host"]
    assert [arc["numa"] for arc in drawn["numa"]] == [0, 1]
    assert [one["told"] for one in drawn["devices"]] == ["allocated", "free", "no data"]
    assert links_graph.graph({"devices": [device("gpu0", 0)]}, {}) is None


def test_a_node_of_many_devices_is_drawn_in_bounds() -> None:
    names = [f"npu{at}" for at in range(200)]
    near = {
        "devices": [device(name, 0, *(link(peer, "HCCS", 56.0) for peer in names if peer != name)) for name in names]
    }
    drawn = links_graph.graph(near, {})
    assert drawn is not None
    assert len(drawn["devices"]) == links_graph.MOST_DEVICES
    assert sum(line["d"].count("M") for line in drawn["lines"]) <= links_graph.MOST_LINES


def test_the_node_page_draws_its_links(town: Town, reader: Client) -> None:
    town.machine()
    Device.objects.filter(uuid="GPU-n1-0").update(links=[link("GPU-n1-1", "NVLINK", 900.0), link("<b>", "PIX")])
    text = reader.get("/nodes/n1").content.decode()
    assert 'data-sort="fast"' in text
    assert "1 × NVLINK" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text.partition('id="topology"')[2].partition("</section>")[0].replace("<b class", "")


def test_no_look_is_told_by_colour_alone() -> None:
    marks = {look: topology.cells([look], 0, 0)[0]["mark"] for look in domains.LOOKS}
    assert len(set(marks.values())) == len(marks)
    assert set(topology.TITLES) == set(marks)
