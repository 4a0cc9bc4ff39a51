"""``yard webhook``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

ONE: dict[str, Any] = {
    "name": "chat", "url": "https://example.org/hook", "format": "cloudevents", "states": ["FAILED"], "active": True,
    "budgets": False, "has_secret": False,
    "created_at": "2027-01-29T02:00:00Z", "made_by": "ann", "delivered_at": None, "retry_at": None, "failures": 2,
    "fault": "status_503", "waiting": 1,
}  # fmt: skip
TRIED: dict[str, Any] = {
    "event": "7d6f", "type": "switchyard.job.state_changed", "job": 7, "at": "2027-01-29T02:00:00Z", "state": "failed",
    "status": 503, "fault": "status_503", "tries": 9, "tried_at": "2027-01-29T02:00:05Z", "took_s": 0.2,
    "next_try_at": None,
}  # fmt: skip
PLACE = "/projects/vision/webhooks/chat"


def test_one_is_added_and_its_key_is_shown_once(yard, server, said):
    server.on("PUT", PLACE, said(201, {"webhook": ONE, "key": "whsec_abc"}))
    code, out, _ = yard("webhook", "add", "chat", ONE["url"], "--state", "FAILED", "--project", "vision")
    assert (code, json.loads(server.asked[-1].body)) == (0, {"url": ONE["url"], "states": ["FAILED"]})
    assert out.splitlines() == [
        "webhook chat: https://example.org/hook",
        "  told      FAILED, as cloudevents",
        "  failed    2 times since then: status_503",
        "  waiting   1",
        "  key       whsec_abc",
        "  It signs what is sent, and is shown this once.",
    ]


def test_a_robots_secret_is_read_from_input_and_budgets_are_told(yard, server, said, monkeypatch):
    server.on("PATCH", PLACE, said(200, ONE | {"budgets": True, "has_secret": True, "format": "feishu"}))
    monkeypatch.setattr("sys.stdin", io.StringIO("its-secret\n"))
    words = ("webhook", "change", "chat", "--format", "feishu", "--budgets", "--secret-stdin", "--project", "vision")
    code, out, _ = yard(*words)
    assert (code, json.loads(server.asked[-1].body)) == (
        0,
        {"format": "feishu", "budgets": True, "secret": "its-secret"},
    )
    assert out.splitlines()[1] == "  told      FAILED, budgets, as feishu, with the signature of its robot"


def test_one_is_changed_listed_and_deleted(yard, server, said):
    server.on("GET", PLACE, said(200, ONE))
    server.on("PATCH", PLACE, said(200, ONE | {"active": False}))
    server.on("GET", "/projects/vision/webhooks", said(200, {"results": [ONE]}))
    server.on("DELETE", PLACE, said(204, None))
    code, out, _ = yard("webhook", "change", "chat", "https://example.org/other", "--off", "--project", "vision")
    assert (code, json.loads(server.asked[-1].body)) == (0, {"url": "https://example.org/other", "active": False})
    assert out.splitlines()[0].endswith(", switched off")
    code, out, _ = yard("webhook", "--project", "vision", "--no-headers")
    assert (code, out.split("\t")[:5]) == (0, ["chat", ONE["url"], "cloudevents", "FAILED", "yes"])
    code, out, _ = yard("webhook", "delete", "chat", "--project", "vision")
    assert (code, out) == (0, "project vision has no webhook chat\n")


def test_a_test_tells_the_answer_without_what_would_rule_the_terminal(yard, server, said):
    told = {"event": "7d6f", "status": 200, "fault": "", "took_s": 0.1, "answer": "<b>ok\x1b[2J</b>"}
    server.on("POST", f"{PLACE}/test", said(200, told))
    code, out, _ = yard("webhook", "test", "chat", "--project", "vision")
    assert code == 0
    assert out.splitlines()[0] == "the test was accepted with status 200, after 0.1 s"
    assert "\x1b" not in out
    server.on("POST", f"{PLACE}/test", said(200, told | {"fault": "tls_failed", "status": None, "answer": ""}))
    code, out, _ = yard("webhook", "test", "chat", "--project", "vision")
    assert (code, out) == (1, "the test failed: tls_failed\n")


def test_deliveries_are_listed_and_one_is_sent_again(yard, server, said):
    server.on("GET", f"{PLACE}/deliveries", said(200, {"results": [TRIED]}))
    server.on("POST", f"{PLACE}/deliveries/7d6f/resend", said(202, None))
    code, out, _ = yard("webhook", "deliveries", "chat", "--project", "vision", "--no-headers")
    assert (code, out.rstrip("\n").split("\t")) == (
        0,
        [TRIED["tried_at"], "job.state_changed", "7", "failed", "503", "status_503", "0.2", "9", "-", "7d6f"],
    )
    assert yard("webhook", "resend", "chat", "7d6f", "--project", "vision")[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        ("add", "chat"), ("add",), ("list", "chat"), ("resend", "chat"), ("change", "chat"), ("test", "chat", "x"),
        ("delete", "chat", "--off"),
    ],
)  # fmt: skip
def test_what_is_missing_or_too_much_is_said(yard, server, line):
    assert yard("webhook", *line, "--project", "vision")[0] == 2
    assert not server.asked
