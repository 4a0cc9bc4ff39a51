"""``yard usage`` and ``yard receipt``: tables for people, the API's own words for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

ROW: dict[str, Any] = {
    "kind": "gpu", "day": None, "project": "vision", "user": None, "pool": None, "model": None,
    "allocated_device_s": 360_000.0, "busy_device_s": 180_000.0, "idle_device_s": 90_000.0,
    "unknown_device_s": 90_000.0, "lost_preempted_device_s": 1800.0, "lost_failed_device_s": 1800.0,
    "charged_device_s": 800_000.0, "attempts": 12, "energy_j": 3_600_000.0, "powered_device_s": 3600.0,
    "co2_g": 380.0, "cost": 250.0, "unpriced_device_s": 0.0,
}  # fmt: skip
FOUND: dict[str, Any] = {
    "from_day": "2027-01-01", "to_day": "2027-01-31", "by": ["project"], "as_of": None, "is_complete": True,
    "is_cut": False, "currency": "EUR",
    "results": [ROW, {**ROW, "kind": "cpu", "energy_j": None, "co2_g": None, "cost": None}], "shares": [],
}  # fmt: skip
RECEIPT: dict[str, Any] = {
    "job": 42, "name": "sft", "project": "vision", "user": "ada", "state": "COMPLETED", "as_of": None,
    "measured_until": None, "wait_s": 90.0, "energy_j": 3_600_000.0, "co2_g": None, "currency": "EUR", "cost": 12.5,
    "is_priced_whole": False, "advice": "train used 9 GiB of 80 GiB: a quarter of it would do\x1b[31m",
    "advice_said": [],
    "lines": [{**ROW, "stage": "train", "model": "H100", "cost": 12.5},
              {**ROW, "stage": "train", "kind": "cpu", "model": "", "cost": None, "unknown_device_s": 360_000.0}],
}  # fmt: skip


def test_usage_is_a_row_for_each_group_and_kind(yard, server, said):
    server.on("GET", "/usage", said(200, FOUND))
    code, out, _ = yard("usage", "--from", "2027-01-01", "--to", "2027-01-31", "-p", "vision")
    assert code == 0
    title, gpu, cpu = (line.split("\t") for line in out.splitlines())
    assert title == ["PROJECT", "KIND", "HOURS", "BUSY", "IDLE", "UNKNOWN", "LOST", "KWH", "EUR"]
    assert gpu == ["vision", "gpu", "100", "50.0", "25.0", "25.0", "1.00", "1.00", "250.00"]
    assert cpu[-2:] == ["-", "-"], "unknown is not 0"
    (asked,) = server.to("GET", "/usage")
    assert asked.query == {"by": "project", "from": "2027-01-01", "to": "2027-01-31", "project": "vision"}
    assert json.loads(yard("usage", "--json")[1]) == FOUND["results"]
    assert yard("usage", "-o", "name")[1] == "vision\nvision\n"


def test_by_job_the_others_are_told_beside_the_table(yard, server, said):
    row = {**ROW, "project": None, "job": 42, "job_name": "sft\x1b[31m"}
    rest = [{**ROW, "project": None, "job": None, "job_name": None}]
    found = {**FOUND, "by": ["job"], "results": [row], "rest": rest, "job_count": 8}
    server.on("GET", "/usage", said(200, found))
    code, out, err = yard("usage", "--by", "job", "--limit", "1")
    assert code == 0
    title, line = (line.split("\t") for line in out.splitlines())
    assert (title[:3], line[0], line[2]) == (["JOB", "NAME", "KIND"], "42", "gpu")
    assert "\x1b" not in out
    assert "7 other jobs, and those that are no longer there, used 100 h of gpu" in err
    assert server.to("GET", "/usage")[0].query == {"by": "job", "limit": "1"}
    server.on("GET", "/usage", said(200, {**found, "job_count": 1}))
    assert "jobs that are no longer there used 100 h of gpu" in yard("usage", "--by", "job")[2]
    assert yard("usage", "--by", "job", "-o", "name")[1] == "42\n"


def test_a_span_is_counted_back_from_today(yard, server, said):
    server.on("GET", "/usage", said(200, FOUND))
    assert yard("usage", "--from", "7d")[0] == 0
    day = datetime.fromisoformat(server.to("GET", "/usage")[0].query["from"]).date()
    assert abs((datetime.now(UTC).date() - day) - timedelta(days=7)) <= timedelta(days=1)


@pytest.mark.parametrize("text", ["2027-02-30", "soon", "9999999999d"])
def test_what_is_no_day_is_refused_before_anything_is_asked(yard, server, text):
    code, _, err = yard("usage", "--from", text)
    assert code == 2
    assert text in err
    assert server.asked == []


def test_the_file_for_accounting_is_passed_on_as_it_is(yard, server, said):
    server.on("GET", "/usage", said(200, "project,kind\nvision,gpu\n", {"Content-Type": "text/csv"}))
    assert "vision,gpu" in yard("usage", "--by", "project", "--csv")[1]
    assert server.asked[0].query == {"by": "project", "format": "csv"}


def test_a_receipt_says_what_was_held_and_used_and_advises(yard, server, said):
    server.on("GET", "/jobs/42/receipt", said(200, RECEIPT))
    code, out, _ = yard("receipt", "42")
    assert code == 0
    assert "\x1b" not in out
    assert "100 device-hours in 12 attempts" in out
    assert "busy 50%, idle 25%, unknown 25%" in out
    assert "unknown, not measured" in out
    assert "12.50 EUR, and what has no price" in out
    assert "a quarter of it would do" in out
    assert json.loads(yard("receipt", "42", "--json")[1]) == RECEIPT
