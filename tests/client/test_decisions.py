"""``yard decisions``: the list, the plan of one decision, and what another profile would have done."""

from __future__ import annotations

from typing import Any

DECISION: dict[str, Any] = {
    "id": 118,
    "at": "2026-01-02T03:04:05Z",
    "profile": "hybrid",
    "code": "0.1.0",
    "duration_ms": 12.4,
    "waiting": 3,
    "started": [{"stage": "42/train", "why": "first in the queue"}],
    "evicted": [{"stage": "17/train", "why": "for 42/train"}],
    "skipped": ["18/train"],
    "waits": {"CapacityInsufficient": 2, "QuotaExhausted": 1},
    "head": {},
    "replanned": "",
    "replanned_said": [],
    "shadow": None,
}
DETAIL: dict[str, Any] = {
    "decision": DECISION,
    "recorded": True,
    "starts": [{"stage": "42/train", "why": "first in the queue", "nodes": ["g01", "g02"], "devices": 16}],
    "waits": [{"stage": "43/train", "reasons": [{"code": "CapacityInsufficient", "text": "needs 8 H100"}]}],
    "hidden": 1,
    "cut": 4,
}


def test_decisions_are_listed_as_asked_for(yard, server, said):
    server.on("GET", "/decisions", said(200, {"results": [DECISION] * 3, "next": None, "previous": None}))
    code, out, _ = yard("decisions", "--job", "42", "--did", "evict", "-n", "2")
    assert code == 0
    assert server.asked[-1].query == {"job": "42", "did": "evict", "limit": "2"}
    titles, *rows = (line.split("\t") for line in out.splitlines())
    assert titles == ["DECISION", "AT", "PROFILE", "TOOK", "STARTED", "STOPPED", "WAITING", "REASONS"]
    assert len(rows) == 2
    assert rows[0][2:] == [
        "hybrid", "12 ms", "42/train", "17/train", "3", "2 CapacityInsufficient, 1 QuotaExhausted"
    ]  # fmt: skip


def test_the_plan_of_a_decision_is_told_in_lines(yard, server, said):
    server.on("GET", "/decisions/118", said(200, DETAIL))
    code, out, _ = yard("decisions", "118")
    assert code == 0
    assert out.splitlines()[1:] == [
        "  starts 42/train on g01, g02: first in the queue",
        "  stops 17/train: for 42/train",
        "  43/train waits: needs 8 H100",
        "  and 4 more stages, 1 that you may not see",
    ]
    server.on("GET", "/decisions/118", said(200, {**DETAIL, "recorded": False, "starts": [], "waits": [], "cut": 0}))
    assert "its inputs are not in the log any more" in yard("decisions", "118")[1]


def test_another_profile_is_compared(yard, server, said):
    found = {"profile": "fifo", "differs": True, "difference": {"only_other": [{"stage": "18/train"}], "spared": []}}
    server.on("GET", "/decisions/118/difference", said(200, found))
    code, out, _ = yard("decisions", "118", "--under", "fifo")
    assert (code, out) == (0, "only other: 18/train\n")
    assert server.asked[-1].query == {"profile": "fifo"}
    server.on("GET", "/decisions/118/difference", said(200, {"profile": "fifo", "differs": False, "difference": {}}))
    assert yard("decisions", "118", "--under", "fifo")[1] == "fifo would have done the same\n"


def test_a_profile_needs_a_decision(yard):
    code, _, err = yard("decisions", "--under", "fifo")
    assert code == 2
    assert "yard decisions NUMBER --under PROFILE" in err
