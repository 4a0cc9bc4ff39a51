"""``yard site``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import io
import json
from typing import Any

ONE: dict[str, Any] = {
    "name": "berlin", "url": "https://yard.example.org", "state": "well", "enabled": True, "fingerprint": "",
    "project": "guests", "pools": [], "locations": [], "price": 1.5, "patience_s": 60, "gain_s": 60, "most_jobs": 100,
    "lost_after_s": 900, "has_token": True, "devices": [{"kind": "gpu", "model": "L4", "count": 8, "free": 3}],
    "waiting": 2, "capacity_at": None, "our_jobs": {"RUNNING": 1}, "condition": "", "condition_said": [],
    "condition_at": None, "failures": 0, "retry_at": None, "answered_at": None,
}  # fmt: skip
JOB = {
    "job": 7, "stage": "main", "name": "embed", "site": "berlin", "number": 4711, "state": "RUNNING", "reason": "",
    "fault": "", "is_unknown": False, "created_at": "2026-11-28T05:00:00Z", "asked_at": None, "looked_at": None,
    "over_at": None,
}  # fmt: skip


def test_one_is_added_and_shown(yard, server, said):
    server.on("POST", "/sites", said(201, ONE))
    code, out, _ = yard("site", "add", "berlin", "--set", "url=https://yard.example.org", "--set", "price=1.5")
    assert code == 0
    assert json.loads(server.asked[-1].body) == {"name": "berlin", "url": "https://yard.example.org", "price": 1.5}
    assert out.splitlines() == [
        "site berlin at https://yard.example.org, well",
        "  L4: 3 of 8 free",
        "  waiting    2",
        "  our jobs   1 RUNNING, at most 100",
        "  price      1.5 for an hour of a device",
        "  leaves     after 1m00s, to end 1m00s earlier",
        "  token      set",
    ]


def test_the_token_is_read_from_standard_input_and_not_printed(yard, server, said, monkeypatch):
    server.on("PUT", "/sites/berlin/token", said(200, ONE))
    monkeypatch.setattr("sys.stdin", io.StringIO("yard_secret_token\n"))
    code, out, _ = yard("site", "token", "berlin")
    assert (code, json.loads(server.asked[-1].body)) == (0, {"token": "yard_secret_token"})
    assert "secret" not in out


def test_they_are_listed_and_our_jobs_there_with_what_is_unknown(yard, server, said):
    server.on("GET", "/sites", said(200, {"results": [{**ONE, "condition": "it does not answer (timed_out)"}]}))
    server.on("GET", "/sites/berlin/jobs", said(200, {"results": [JOB, {**JOB, "job": 8, "is_unknown": True}]}))
    assert "it does not answer (timed_out)" in yard("site")[1]
    out = yard("site", "jobs", "berlin")[1]
    assert all(word in out for word in ("#4711", "RUNNING", "unknown at site"))


def test_one_is_changed_given_up_and_deleted(yard, server, said):
    server.on("PATCH", "/sites/berlin", said(200, {**ONE, "state": "disabled"}))
    server.on("POST", "/sites/berlin/give-up", said(200, {"given_up": 3}))
    server.on("DELETE", "/sites/berlin", said(204, None))
    assert "disabled" in yard("site", "change", "berlin", "--set", "enabled=false")[1]
    assert "3 jobs at site berlin were given up" in yard("site", "give-up", "berlin", "--reason", "it burnt down")[1]
    assert yard("site", "delete", "berlin")[:2] == (0, "site berlin was deleted\n")


def test_what_is_missing_or_too_much_is_said(yard):
    assert yard("site", "show")[0] == 2
    assert yard("site", "add", "berlin")[0] == 2
    assert yard("site", "delete", "berlin", "--set", "price=4")[0] == 2
    assert yard("site", "give-up", "berlin")[0] == 2


def test_a_job_is_sent_with_the_sites_that_it_may_leave_for(yard, server, said):
    server.on("POST", "/jobs", said(422, {"code": "invalid", "detail": "x", "errors": []}))
    yard("submit", "--sites", "berlin,oslo", "--", "true")
    assert json.loads(server.asked[-1].body)["sites"] == ["berlin", "oslo"]
    yard("submit", "--sites", "any", "--", "true")
    assert json.loads(server.asked[-1].body)["sites"] == "any"
