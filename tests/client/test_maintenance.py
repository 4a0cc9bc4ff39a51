"""``yard maintenance``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import json
from typing import Any

import pytest

WINDOW: dict[str, Any] = {
    "id": 12,
    "node": "g07",
    "pool": None,
    "starts_at": "2027-01-31T18:00:00Z",
    "ends_at": "2027-01-31T22:00:00Z",
    "reason": "fan swap",
    "made_by": "ada",
    "cancelled_at": None,
    "cancelled_by": "",
}


def test_it_lists_what_has_not_ended(yard, server, said):
    server.on("GET", "/maintenance-windows", said(200, {"results": [WINDOW], "next": None, "previous": None}))
    code, out, _ = yard("maintenance")
    assert (code, "node g07" in out, "fan swap" in out) == (0, True, True)
    assert "all" not in server.asked[-1].query
    yard("maintenance", "--all")
    assert server.asked[-1].query["all"] == "true"


def test_a_window_is_planned_and_tells_whom_it_meets(yard, server, said):
    affected = {"job": 7, "stage": "train", "user": "bob", "node": "g07", "ends_by": None}
    server.on("POST", "/maintenance-windows", said(201, {"window": WINDOW, "affects": [affected], "hidden": 2}))
    asked = ["--node", "g07", "--from", "2027-01-31T18:00:00Z", "--for", "4h", "--reason", "fan swap"]
    code, out, _ = yard("maintenance", *asked)
    assert code == 0
    assert out.splitlines() == [
        "window 12 is planned: node g07 from 2027-01-31T18:00:00Z to 2027-01-31T22:00:00Z",
        "  job 7 train of bob runs on g07 without a time limit",
        "  and 2 stages of jobs that you may not see",
    ]
    body = json.loads(server.asked[-1].body)
    assert body["node"] == "g07"
    assert body["ends_at"] > body["starts_at"]
    assert "dry_run" not in server.asked[-1].query
    yard("maintenance", *asked, "--dry-run")
    assert server.asked[-1].query == {"dry_run": "true"}


def test_one_is_called_off(yard, server, said):
    server.on("POST", "/maintenance-windows/12/cancel", said(200, WINDOW))
    assert yard("maintenance", "--cancel", "12")[:2] == (0, "window 12 is cancelled\n")


@pytest.mark.parametrize(
    "asked",
    [
        ["--node", "g07", "--for", "4h"],
        ["--node", "g07", "--reason", "fans"],
        ["--for", "4h", "--reason", "fans"],
        ["--node", "g07", "--pool", "train"],
        ["--node", "g07", "--from", "tomorrow"],
    ],
)
def test_half_a_window_is_refused_before_anybody_is_asked(yard, server, asked):
    assert yard("maintenance", *asked)[0] == 2
    assert not server.asked


def test_a_window_and_a_reservation_are_changed(yard, server, said):
    window = {"id": 12, "node": "g07", "starts_at": "2027-01-01T00:00:00Z", "ends_at": "2027-01-01T02:00:00Z"}
    server.on("PATCH", "/maintenance-windows/12", said(200, {"window": window, "affects": [], "hidden": 0}))
    code, out, _ = yard("maintenance", "--change", "12", "--reason", "new fans")
    assert (code, json.loads(server.asked[-1].body)) == (0, {"reason": "new fans"})
    assert out.startswith("window 12 is planned: node g07")
    yard("maintenance", "--change", "12", "--from", "2027-01-01T00:00:00+00:00", "--for", "2h", "--dry-run")
    sent = json.loads(server.asked[-1].body)
    assert (sent["cron"], sent["lasts_s"], sent["ends_at"][:16]) == ("", None, "2027-01-01T02:00")
    assert yard("maintenance", "--change", "12")[0] == 2
    one = {"name": "demo", "project": "vision", "users": [], "nodes": ["g07"], "reason": "x", "cron": "",
           "next_starts_at": "2027-01-01T00:00:00Z", "next_ends_at": "2027-01-01T02:00:00Z"}  # fmt: skip
    server.on("PATCH", "/reservations/demo", said(200, one))
    code, out, _ = yard("reserve", "demo", "--change", "--node", "g07", "--node", "g08")
    assert (code, json.loads(server.asked[-1].body)) == (0, {"nodes": ["g07", "g08"]})
    assert {asked.headers["if-match"] for asked in server.asked if asked.method == "PATCH"} == {"*"}


def test_a_window_and_a_reservation_are_changed_as_they_were_read(new_client, server, said):
    server.on("PATCH", "/maintenance-windows/12", said(200, {}))
    server.on("PATCH", "/reservations/demo", said(200, {}))
    with new_client(server.url) as client:
        client.maintenance.change(12, reason="new fans", if_match='"a"')
        client.reservations.change("demo", reason="x", if_match='"b"')
    assert [asked.headers["if-match"] for asked in server.asked] == ['"a"', '"b"']
