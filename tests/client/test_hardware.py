"""``yard hardware --gangs`` and ``--history``, and ``yard devices --by``: what the overview shows, in a shell."""

from __future__ import annotations

import json

import pytest


def test_the_largest_gang_of_each_model(yard, server, said):
    gang = {"kind": "gpu", "model": "H100", "pool": "train", "nodes": 3, "each": 4, "size": 8}
    free = [{"nodes": 1, "free": 8}, {"nodes": 2, "free": 4}]
    server.on("GET", "/overview/gangs", said(200, {"results": [{**gang, "by_node": free}]}))
    code, out, _ = yard("hardware", "--gangs", "-o", "wide")
    assert code == 0
    assert [line.split("\t") for line in out.splitlines()] == [
        ["MODEL", "KIND", "POOL", "NODES", "EACH", "TOGETHER", "FREE"],
        ["H100", "gpu", "train", "3", "4", "12", "1 x 8, 2 x 4"],
    ]


def test_the_history_of_the_capacity(yard, server, said):
    found = {
        "step_s": 3600,
        "at": ["2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"],
        "kinds": [
            {"kind": "gpu", "allocated": [1.5, 2.0], "capacity": [8.0, 8.0]},
            {"kind": "cpu", "allocated": [4.0, 0.0], "capacity": [64.0, 64.0]},
        ],
        "waiting": [3, 0],
    }
    server.on("GET", "/overview/history", said(200, found))
    code, out, _ = yard("hardware", "--history", "week")
    assert code == 0
    assert server.asked[-1].query == {"within": "week"}
    titles, first, second = (line.split("\t") for line in out.splitlines())
    assert titles == ["UNTIL", "GPU", "CPU", "WAITING"]
    assert (first[1:], second[1:]) == (["1.5/8", "4/64", "3"], ["2/8", "0/64", "0"])
    rows = json.loads(yard("hardware", "--history", "week", "--json")[1])
    assert rows[0]["kinds"]["gpu"] == {"allocated": 1.5, "capacity": 8.0}


def test_the_load_of_groups(yard, server, said):
    group = {"name": "vision", "kind": "gpu", "devices": 9, "allocated": 8.5, "known": 8}
    known, unknown = {"mean": 412.5, "least": 90.0, "most": 650.0}, {"mean": None, "least": None, "most": None}
    found = {"metric": "power", "by": "project", "unit": "W", "results": [{**group, **known}, {**group, **unknown}]}
    server.on("GET", "/overview/loads", said(200, found))
    code, out, _ = yard("devices", "--by", "project", "--metric", "power")
    assert code == 0
    assert server.asked[-1].query == {"metric": "power", "by": "project"}
    assert [line.split("\t") for line in out.splitlines()] == [
        ["PROJECT", "KIND", "DEVICES", "HELD", "MEAN", "LEAST", "MOST"],
        ["vision", "gpu", "9", "8.5", "412.5 W", "90 W", "650 W"],
        ["vision", "gpu", "9", "8.5", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    "words", [("--metric", "power"), ("--by", "pool", "--free"), ("--by", "pool", "--kind", "gpu")]
)
def test_options_that_do_not_go_together(yard, words):
    code, _, err = yard("devices", *words)
    assert code == 2
    assert "--by" in err
