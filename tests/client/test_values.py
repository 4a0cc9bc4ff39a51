"""``yard values`` and ``yard timeline``: what a job reported, and who holds each device."""

from __future__ import annotations

import json

import pytest

LOSS = {"name": "loss", "steps": [1, 2, 30], "values": [2.5, None, 0.25], "reports": 30}
REPORTED = {"results": [{"stage": "train", "attempt": 2, "series": [LOSS]}]}


def test_each_number_with_its_newest_least_and_most(yard, server, said):
    server.on("GET", "/jobs/42/values", said(200, REPORTED))
    code, out, _ = yard("values", "42", "--stage", "train", "--name", "loss", "-o", "wide")
    assert code == 0
    assert server.asked[-1].query == {"stage": "train", "name": "loss"}
    assert [line.split("\t") for line in out.splitlines()] == [
        ["STAGE", "ATTEMPT", "NAME", "STEP", "NEWEST", "LEAST", "MOST", "REPORTS"],
        ["train", "2", "loss", "30", "0.25", "0.25", "2.5", "30"],
    ]
    (row,) = json.loads(yard("values", "42", "-o", "json")[1])
    assert row == {"stage": "train", "attempt": 2, **LOSS}
    assert yard("values", "42", "-o", "name")[1] == "loss\n"


def test_each_step_of_a_number(yard, server, said):
    server.on("GET", "/jobs/42/values", said(200, REPORTED))
    _, out, _ = yard("values", "42", "--each", "--no-headers")
    assert [line.split("\t")[3:] for line in out.splitlines()] == [["1", "2.5"], ["2", "-"], ["30", "0.25"]]


def test_a_job_that_reported_nothing_has_no_rows(yard, server, said):
    none = {"name": "loss", "steps": [], "values": [], "reports": 0}
    server.on("GET", "/jobs/42/values", said(200, {"results": [{"stage": "train", "attempt": 1, "series": [none]}]}))
    code, out, _ = yard("values", "42", "--no-headers")
    assert (code, out.split("\t")) == (0, ["train", "1", "loss", "-", "-", "-", "-\n"])


def segment(lane, **changed):
    return {
        "lane": lane, "job": 7, "name": "moe", "stage": "train", "kind": "gpu", "attempt": 1, "project": "vision",
        "user": "lin", "state": "RUNNING", "cause": "", "milli": 1000, "start_at": "2026-01-02T03:00:00Z",
        "end_at": None, "expected_end_at": "2026-01-02T05:00:00Z", "overdue_since_at": None, "planned": False,
        **changed,
    }  # fmt: skip


def lane(device, node, kind, index):
    return {
        "device": device, "node": node, "kind": kind, "model": "", "index": index, "capacity_milli": 1000,
        "simulated": False,
    }  # fmt: skip


@pytest.fixture
def timeline(server, said):
    found = {
        "now": "2026-01-02T04:00:00Z", "from_at": "", "to_at": "", "node_count": 2, "truncated": True,
        "lanes": [lane("c", "g2", "cpu", 0), lane("a", "g10", "gpu", 3), lane("b", "g2", "gpu", 1)],
        "segments": [
            segment("c", milli=500, end_at="2026-01-02T03:30:00Z", state="COMPLETED", expected_end_at=None),
            segment("a", job=None, name=None, stage=None, project=None, user=None),
            segment("b", planned=True, state="PENDING", end_at="2026-01-02T06:00:00Z", expected_end_at=None),
            segment("of a node that is not among them"),
        ],
    }  # fmt: skip
    server.on("GET", "/timeline", said(200, found))


def test_who_holds_each_device_by_node_and_device(yard, server, timeline):
    code, out, error = yard("timeline", "--since", "1d", "--until", "30m", "--pool", "train", "--node", "g")
    assert code == 0
    assert server.asked[-1].query == {"from": "-86400", "to": "1800", "pool": "train", "node": "g", "nodes": "1000"}
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["NODE", "DEVICE", "SHARE", "JOB", "NAME", "STAGE", "STATE", "FROM", "TO"]
    assert [row[:7] for row in rows[1:]] == [
        ["g2", "gpu1", "1", "7", "moe", "train", "PLANNED"],
        ["g2", "cpu0", "0.5", "7", "moe", "train", "COMPLETED"],
        ["g10", "gpu3", "1", "-", "-", "-", "RUNNING"],
    ]
    assert [row[8][0] for row in rows[1:]] == ["~", "2", "~"], "a tilde where an end is only expected"
    assert "there is more than is shown" in error


def test_programs_get_each_segment_with_the_place_of_its_device(yard, timeline):
    rows = [json.loads(line) for line in yard("timeline", "-o", "jsonl")[1].splitlines()]
    assert [(row["node"], row["device_kind"], row["index"]) for row in rows] == [
        ("g2", "gpu", 1), ("g2", "cpu", 0), ("g10", "gpu", 3),
    ]  # fmt: skip
