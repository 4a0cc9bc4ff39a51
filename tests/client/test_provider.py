"""``yard provider``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import json
from typing import Any

ONE: dict[str, Any] = {
    "name": "hpc", "kind": "slurm", "pool": "default", "settings": {"python": "/opt/python"}, "min_nodes": 0,
    "max_nodes": 8,
    "shapes": [{"name": "l4x2", "cpus": 4, "memory_gib": 8, "devices": [{"kind": "gpu", "model": "L4", "count": 2}]}],
    "hours": 4.0, "budget_node_hours": 500.0, "used_node_hours": 12.5, "idle_s": 300, "wait_s": 86_400, "enabled": True,
    "condition": "", "condition_said": [], "condition_at": None, "failures": 0, "retry_at": None, "looked_at": None,
    "pilots": {"UP": 2},
}  # fmt: skip
PILOT = {
    "id": "0", "provider": "hpc", "shape": "l4x2", "hours": 4.0, "label": "yard-a-b", "handle": "4711", "state": "GONE",
    "why": "idle", "node": "hpc-1", "created_at": "2026-11-28T05:00:00Z", "up_at": None, "joined_at": None,
    "ends_at": "2026-11-28T09:00:00Z", "leaving_at": None, "gone_at": "2026-11-28T06:00:00Z",
}  # fmt: skip


def test_one_is_added_from_a_file_and_what_is_set_counts(yard, server, said, tmp_path):
    file = tmp_path / "provider.yaml"
    file.write_text("kind: slurm\npool: default\nhours: 1\n")
    server.on("POST", "/providers", said(201, ONE))
    code, out, _ = yard("provider", "add", "hpc", str(file), "--set", "hours=4")
    assert code == 0
    assert json.loads(server.asked[-1].body) == {"name": "hpc", "kind": "slurm", "pool": "default", "hours": 4}
    assert out.splitlines() == [
        "provider hpc (slurm) of pool default, well",
        "  nodes      0 to 8, each for 4h00m",
        "  node-hours 12.5 of 500 in 30 days",
        "  idle       given back after 5m00s",
        "  shape      l4x2: 4 cores, 8 GiB, 2 x L4",
        "  pilots     2 UP",
    ]


def test_they_are_listed_with_their_condition_and_their_pilots_with_why_they_went(yard, server, said):
    server.on("GET", "/providers", said(200, {"results": [{**ONE, "condition": "Slurm: down"}]}))
    server.on("GET", "/providers/hpc/pilots", said(200, {"results": [PILOT]}))
    assert "Slurm: down" in yard("provider")[1]
    out = yard("provider", "pilots", "hpc")[1]
    assert all(word in out for word in ("4711", "GONE", "idle", "hpc-1"))


def test_one_is_changed_and_deleted(yard, server, said):
    server.on("PATCH", "/providers/hpc", said(200, {**ONE, "enabled": False}))
    server.on("DELETE", "/providers/hpc", said(204, None))
    code, out, _ = yard("provider", "change", "hpc", "--set", "enabled=false")
    assert (code, "disabled" in out, json.loads(server.asked[-1].body)) == (0, True, {"enabled": False})
    assert yard("provider", "delete", "hpc")[:2] == (0, "provider hpc was deleted\n")


def test_what_is_missing_or_too_much_is_said(yard):
    assert yard("provider", "show")[0] == 2
    assert yard("provider", "add", "hpc")[0] == 2
    assert yard("provider", "delete", "hpc", "--set", "hours=4")[0] == 2
