"""``yard sim``: what it sends, what it prints, and its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard import WaitTimeout

ONE: dict[str, Any] = {
    "id": 3, "name": "hybrid or fifo", "user": "mia", "source": "queue", "phase": "RUNNING", "progress": 0.5,
    "doing": "fifo, 6 of 12 stages", "fault": "", "profiles": ["hybrid", "fifo"],
    "created_at": "2026-11-21T03:00:00Z",
}  # fmt: skip
FIGURES = {"wait_avg_s": 75.0, "wait_p95_s": 700.0, "jct_avg_s": 4000.0, "makespan_s": 90_000.0, "utilisation": 0.61,
           "preemptions": 2.0, "jain": 0.875, "completed": 12}  # fmt: skip


def result() -> dict[str, Any]:
    rows = [
        {"profile": name, "load": 1.0, "seeds": seeds, "figures": FIGURES, "spread": {"wait_avg_s": 5.0}}
        for name, seeds in (("hybrid", 3), ("fifo", 1))
    ]
    return {"stages": 12, "devices": 8, "nodes": 1, "notes": ["2 were left out"], "summary": rows}


def detail(phase: str, **more: Any) -> dict[str, Any]:
    found = {**ONE, "phase": phase, **more}
    return {"simulation": found, "scenario": {}, "result": result() if phase == "DONE" else None}


def test_the_queue_of_a_pool_is_simulated_watched_and_shown(yard, server, said):
    server.on("POST", "/simulations", said(201, ONE))
    server.on("GET", "/simulations/3", said(200, detail("RUNNING")), said(200, detail("DONE", progress=1.0)))
    code, out, err = yard("sim", "run", "--queue", "--pool", "default", "--profiles", "hybrid, fifo", "--seeds", "3")
    assert code == 0
    assert server.to("POST", "/simulations")[0].json == {
        "trace": {"queue": {"pool": "default"}}, "world": {"pool": "default"}, "profiles": ["hybrid", "fifo"],
        "seeds": [0, 1, 2],
    }  # fmt: skip
    assert "simulation 3 RUNNING" in err
    assert "12 stages, 8 devices of 1 nodes; simulated" in err
    assert "note: 2 were left out" in err
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[0][:4] == ["PROFILE", "LOAD", "WAIT", "WAIT P95"]
    assert lines[1] == ["hybrid", "1", "1m15s ±5s", "11m", "1h06m", "1d01h", "61%", "2", "0.88", "12"]
    assert lines[2][2] == "1m15s"


@pytest.mark.parametrize(("phase", "code"), [("DONE", 0), ("FAILED", 1), ("CANCELLED", 8)])
def test_the_exit_code_tells_how_it_ended(yard, server, said, phase, code):
    server.on("GET", "/simulations/3", said(200, detail(phase, fault="its process is gone" if code == 1 else "")))
    for verb in ("watch", "show"):
        found, out, err = yard("sim", verb, "3")
        assert found == code
        assert phase in out + err
    assert json.loads(yard("sim", "show", "3", "--json")[1])["simulation"]["phase"] == phase


def test_a_trace_and_a_scenario_are_read_here(yard, server, said, no_config):
    server.on("POST", "/simulations", said(201, ONE))
    (no_config / "week.swf").write_text("; a trace\n")
    (no_config / "two.yaml").write_text("name: two\ntrace: {file: week.swf, first: 5}\nworld: {nodes: 2x8, error: 1}\n")
    assert yard("sim", "run", "week.swf", "--nodes", "8x8", "--loads", "1,1.2", "-d")[:2] == (0, "3\n")
    assert yard("sim", "run", "two.yaml", "--error", "0", "--pool", "big", "-d")[0] == 0
    first, other = (asked.json for asked in server.to("POST", "/simulations"))
    trace = {"text": "; a trace\n", "format": "swf"}
    assert first == {"trace": trace, "world": {"nodes": "8x8"}, "loads": [1.0, 1.2]}
    assert other == {"name": "two", "trace": {"first": 5, **trace}, "world": {"pool": "big", "error": 0.0}}
    (no_config / "evil.yaml").write_text("trace: {file: ../.ssh/id_rsa}\n")
    for words in (["evil.yaml"], ["missing.csv"], [], ["week.swf", "--queue"], ["week.swf", "--loads", "fast"]):
        code, _, err = yard("sim", "run", *words)
        assert (code, err.startswith("error: ")) == (2, True), words


def test_simulations_are_listed_and_cancelled(yard, server, said):
    server.on("GET", "/simulations", said(200, {"results": [ONE], "next": None}))
    server.on("POST", "/simulations/3/cancel", said(200, ONE))
    assert yard("sim")[1].splitlines()[1].startswith("3\thybrid or fifo\tRUNNING\t50%\tqueue\thybrid, fifo\tmia")
    assert yard("sim", "cancel", "3")[0] == 0
    for words in (["cancel"], ["show", "x"], ["list", "3"], ["watch", "3", "--queue"]):
        assert yard("sim", *words)[0] == 2


def test_both_clients_wait_through_an_absence(server, new_client, said, as_problem):
    away = as_problem(503, "database_unavailable", "away")
    server.on("GET", "/simulations/3", said(200, detail("RUNNING")), away, said(0), said(200, detail("DONE")))
    seen: list[float] = []
    with new_client(server.url, tries=1) as client:
        found = client.simulations.wait(3, told=lambda one: seen.append(one["progress"]))
        assert (found["simulation"]["phase"], seen) == ("DONE", [0.5])
        server.on("GET", "/simulations/3", said(200, detail("RUNNING")))
        with pytest.raises(WaitTimeout, match="goes on"):
            client.simulations.wait(3, 0.02)
