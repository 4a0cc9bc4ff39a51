"""``yard schedule``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import json
from typing import Any

import pytest

ONE: dict[str, Any] = {
    "id": 3, "name": "nightly", "project": "vision", "user": "ann", "cron": "0 3 * * 1-5", "zone": "Europe/Berlin",
    "overlap": "skip", "catch_up": "last", "starts_at": None, "ends_at": None, "paused": False,
    "next_at": "2027-01-29T02:00:00Z", "fault": "", "refusals": 0, "last": None,
}  # fmt: skip
RUN = {"due_at": "2027-01-28T02:00:00Z", "at": "2027-01-28T02:00:01Z", "outcome": "submitted", "job": 7,
       "is_array": False, "detail": ""}  # fmt: skip
WHOLE = {"schedule": ONE, "job": {"run": "true"}, "times": [ONE["next_at"]], "runs": [RUN]}


def test_one_is_made_of_a_job_file_and_shows_its_next_times(yard, server, said, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("run: 'true'\n")
    server.on("POST", "/schedules", said(201, WHOLE))
    code, out, _ = yard("schedule", "create", "nightly", str(file), "--cron", "0 3 * * 1-5", "--zone", "Europe/Berlin",
                        "--catch-up", "none", "--project", "vision")  # fmt: skip
    assert code == 0
    assert out.splitlines() == [
        "schedule 3 nightly of project vision, submitted as ann",
        "  times     0 3 * * 1-5 (Europe/Berlin)",
        "  rules     overlap skip, catch up last",
        "  next      2027-01-29T02:00:00Z",
        "  2027-01-28T02:00:00Z  submitted job 7",
    ]
    assert json.loads(server.asked[-1].body) == {
        "name": "nightly", "cron": "0 3 * * 1-5", "zone": "Europe/Berlin", "catch_up": "none",
        "job": {"run": "true", "project": "vision"},
    }  # fmt: skip


def test_one_is_found_by_its_name_and_paused_run_and_deleted(yard, server, said):
    server.on("GET", "/schedules", said(200, {"results": [ONE], "next": None, "previous": None}))
    server.on("PATCH", "/schedules/3", said(200, {**WHOLE, "schedule": {**ONE, "paused": True}}))
    server.on("POST", "/schedules/3/run", said(200, RUN))
    server.on("DELETE", "/schedules/3", said(204, None))
    assert "nightly" in yard("schedule")[1]
    code, out, _ = yard("schedule", "pause", "nightly")
    assert (code, "paused" in out, json.loads(server.asked[-1].body)) == (0, True, {"paused": True})
    assert yard("schedule", "run", "nightly")[:2] == (0, "submitted job 7\n")
    server.on("POST", "/schedules/3/run", said(200, {**RUN, "job": None, "outcome": "refused", "detail": "no pool"}))
    assert yard("schedule", "run", "3")[:2] == (2, "refused: no pool\n")
    assert yard("schedule", "delete", "3")[0] == 0


def test_a_name_of_several_or_of_none_is_no_guess(yard, server, said):
    two = [ONE, {**ONE, "id": 4, "project": "speech"}]
    server.on("GET", "/schedules", said(200, {"results": two, "next": None, "previous": None}))
    code, _, err = yard("schedule", "pause", "nightly")
    assert (code, "3 of vision, 4 of speech" in err) == (2, True)
    server.on("GET", "/schedules", said(200, {"results": [], "next": None, "previous": None}))
    code, _, err = yard("schedule", "show", "weekly")
    assert (code, "yard schedule lists them" in err) == (3, True)


@pytest.mark.parametrize(
    "words",
    [("create", "x", "job.yaml"), ("create", "x", "--cron", "0 3 * * *"), ("pause",), ("change", "x"),
     ("pause", "x", "--cron", "0 3 * * *")],
)  # fmt: skip
def test_what_is_missing_or_too_much_is_said_before_anything_is_asked(yard, server, words):
    code, _, err = yard("schedule", *words)
    assert (code, err.startswith("error: "), server.asked) == (2, True, [])


def test_a_job_file_takes_a_folder_or_a_bundle(yard, server, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(f"run: 'true'\nworkdir: {tmp_path}\nbundle: {'a' * 64}\n")
    for words in (("create", "nightly", str(file), "--cron", "0 3 * * *"), ("change", "3", str(file))):
        code, _, err = yard("schedule", *words)
        assert (code, "not both" in err) == (2, True)
    assert server.asked == []
