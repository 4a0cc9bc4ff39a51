"""Exit codes: a job's own code comes through, and each refusal has its number."""

from __future__ import annotations

import pytest

from switchyard.cli import exits


def ended(state, *stages, **more):
    names = [
        {"name": f"s{n}", "id": f"id{n}", "index": n, "state": "COMPLETED", "cause": "", "exit_code": 0}
        for n in range(3)
    ]
    for n, stage in enumerate(stages):
        names[n] |= stage
    return {"state": state, "stages": names, **more}


FAILED = {"state": "FAILED", "cause": "EXIT_CODE"}


@pytest.mark.parametrize(
    ("job", "attempts", "code"),
    [
        (ended("COMPLETED"), [], 0),
        (ended("CANCELLED"), [], 8),
        (ended("FAILED", {**FAILED, "exit_code": 3}), [], 3),
        (ended("FAILED", {**FAILED, "exit_code": 255}), [], 255),
        (ended("FAILED", {**FAILED, "exit_code": 256}), [], 1),
        (ended("FAILED", {**FAILED, "exit_code": -15}), [], 143),
        (ended("FAILED", {**FAILED, "exit_code": None}), [], 1),
        (ended("FAILED", {**FAILED, "cause": "PREEMPTED", "exit_code": 143}), [], 8),
        (
            ended("FAILED", {**FAILED, "cause": "SIGNAL", "exit_code": None}),
            [
                {"stage": "s0", "number": 1, "signal": 15},
                {"stage": "s0", "number": 2, "signal": 9},
                {"stage": "s1", "number": 9, "signal": 6},
            ],
            137,
        ),
        (
            ended(
                "FAILED",
                {**FAILED, "exit_code": 4, "ended_at": "2026-01-01T00:00:09Z"},
                {**FAILED, "exit_code": 5, "ended_at": "2026-01-01T00:00:02Z"},
            ),
            [],
            5,
        ),
        (
            ended(
                "FAILED",
                {"state": "COMPLETED"},
                {**FAILED, "exit_code": 7},
                {"state": "CANCELLED", "cause": "DEPENDENCY"},
            ),
            [],
            7,
        ),
    ],
)
def test_the_code_of_a_job(job, attempts, code):
    assert exits.of_job(job, attempts) == code


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (401, 4), (403, 4), (404, 3), (409, 5), (412, 5), (422, 2), (429, 1), (500, 1), (503, 6), (413, 1)],
)
def test_the_code_of_a_refusal(status, code):
    assert exits.of_problem(status) == code
    assert exits.of_problem(422, "key_reused") == exits.CONFLICT
