"""``yard queue``: the places, starts and reasons that people and programs read."""

from __future__ import annotations

import json
from typing import Any

HELD = {"code": "Held", "text": "on hold by ann", "acts": "user or admin"}
NEEDS = {"code": "DependencyPending", "text": "waits for load", "acts": "nobody"}
FULL = {"code": "NoFit", "text": "needs 8 H100", "acts": "nobody"}
START = {"low_at": "2027-01-29T02:00:00Z", "high_at": "2027-01-29T04:00:00Z", "basis": ""}


def job(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "name": f"j{number}", "user": "ann", "project": "vision", "pool": "train",
            "state": "PENDING", "priority": {"class": "high", "value": 700}, "submitted_at": "2026-01-01T00:00:00Z",
            **more}  # fmt: skip


LINE = [
    {"place": 1, "job": job(7, reason=FULL, stages=[
        {"state": "PENDING", "reason": NEEDS, "expected_start": None},
        {"state": "PENDING", "reason": FULL, "expected_start": START},
    ])},
    {"place": None, "job": job(9, state="HELD", reason=HELD, stages=[
        {"state": "HELD", "reason": HELD, "expected_start": None},
    ])},
]  # fmt: skip


def test_places_starts_and_reasons_stand_in_the_order_of_the_server(yard, server, said):
    server.on("GET", "/queue", said(200, {"results": LINE, "total": 5}))
    code, out, err = yard("queue", "--pool", "train", "-n", "2")
    first, second = (line.split("\t") for line in out.splitlines()[1:])
    assert (code, server.asked[-1].query) == (0, {"pool": "train", "limit": "2"})
    assert (first[0], first[1], first[-1]) == ("1", "7", "needs 8 H100")
    assert " – " in first[-2]
    assert (second[0], second[-2], second[-1]) == ("held", "unknown", "on hold by ann")
    assert "2 of 5 are shown" in err
    assert [json.loads(line) for line in yard("queue", "-o", "jsonl")[1].splitlines()] == LINE
    assert yard("queue", "-o", "name")[1].split() == ["7", "9"]


def test_a_limit_is_a_number_that_the_server_takes(yard, server):
    for wrong in ("0", "501", "x", "9" * 30):
        assert yard("queue", "-n", wrong)[0] == 2
    assert server.asked == []
