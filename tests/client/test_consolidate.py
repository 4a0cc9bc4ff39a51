"""``yard consolidate``: who could move for whom, and following that."""

from __future__ import annotations

import json
from typing import Any

ADVICE: dict[str, Any] = {
    "id": "0000-12",
    "stage": "#12/train",
    "nodes": ["g02"],
    "moves": [{"stage": "#7/train", "nodes": ["g02"], "to": ["g05"], "price": 80.0}],
    "price": 80.0,
    "gain": 4000.0,
    "wait_s": 900.0,
    "worth": True,
}
FOUND = {"evaluated_at": "2027-01-31T18:00:00Z", "too_large": False, "advice": [ADVICE]}


def test_it_lists_who_could_move(yard, server, said):
    server.on("GET", "/consolidation", said(200, FOUND))
    code, out, _ = yard("consolidate")
    assert code == 0
    assert "#7/train moves from g02 to g05" in out


def test_the_advice_for_a_job_is_followed(yard, server, said):
    server.on("GET", "/consolidation", said(200, FOUND))
    server.on("POST", "/consolidation", said(200, ADVICE))
    assert yard("consolidate", "--follow", "12")[:2] == (0, "#7/train moves from g02 to g05 now, for #12/train\n")
    assert json.loads(server.asked[-1].body) == {"stage": "0000-12"}


def test_without_an_advice_for_it_nothing_is_asked(yard, server, said):
    server.on("GET", "/consolidation", said(200, FOUND))
    code, _, err = yard("consolidate", "--follow", "13")
    assert code == 5
    assert "no move makes room for job 13" in err
    assert [one.method for one in server.asked] == ["GET"]
