"""``yard topology``: the tree that people read."""

from __future__ import annotations

from typing import Any


def device(name: str, numa: int | None, group: int | None = None, pcie: str = "") -> dict[str, Any]:
    return {"name": name, "numa": numa, "group": group, "pcie": pcie, "links": []}


NODES = [
    {
        "node": "g2",
        "domain": "rack=r1",
        "gbps": 400.0,
        "is_measured": False,
        "load": 0.25,
        "groups": [{"number": 0, "types": ["NVLINK"], "gbps": 900.0, "devices": ["gpu0", "gpu1"]}],
        "devices": [device("cpu0", 0), device("gpu0", 0, 0, "gen5 x16"), device("gpu1", 1, 0)],
    },
    {
        "node": "g10",
        "domain": "rack=r1",
        "gbps": 7.5,
        "is_measured": True,
        "measured": [{"node": f"g{i}", "gbps": 5.0 * i, "at": "2026-11-28T09:00:00Z"} for i in range(1, 11)],
        "load": 0.0,
        "groups": [],
        "devices": [device("cpu0", None)],
    },
    {
        "node": "solo",
        "domain": "node=solo",
        "gbps": None,
        "is_measured": False,
        "load": 1.5,
        "groups": [],
        "devices": [],
    },
]


def test_the_tree_has_domains_nodes_groups_and_numa_nodes(yard, server, said):
    server.on("GET", "/topology", said(200, {"results": NODES, "next": None, "previous": None}))
    code, out, _ = yard("topology", "--pool", "gpu")
    assert code == 0
    assert server.asked[-1].query["pool"] == "gpu"
    assert out.splitlines() == [
        "solo  load 1.5",
        "rack=r1",
        "├─ g2  400 Gbit/s (declared)  load 0.25",
        "│  ├─ group 0 (NVLINK, 900 GB/s): gpu0 gpu1",
        "│  ├─ NUMA 0: cpu0 gpu0[gen5 x16]",
        "│  └─ NUMA 1: gpu1",
        "└─ g10  7.5 Gbit/s (measured)  load 0",
        "   ├─ measured from g1 5, g2 10, g3 15, g4 20, g5 25, g6 30, g7 35, g8 40 Gbit/s and 2 faster ones",
        "   └─ NUMA ?: cpu0",
    ]


def test_a_node_that_is_not_there_is_said(yard, server, said):
    server.on("GET", "/topology", said(200, {"results": [], "next": None, "previous": None}))
    code, _, complaint = yard("topology", "g07")
    assert (code, "there is no node g07" in complaint) == (3, True)
