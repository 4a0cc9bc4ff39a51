"""``yard project keep``: how long a project's records are kept."""

from __future__ import annotations

import pytest

RULES = [
    {"kind": "logs", "days": 14, "own_days": 14, "least_days": 1, "log_bytes": None},
    {"kind": "jobs", "days": None, "own_days": None, "least_days": 30, "log_bytes": None},
]
TABLE = [["RECORDS", "DAYS", "OWN", "LEAST"], ["logs", "14", "14", "1"], ["jobs", "for ever", "-", "30"]]


def test_the_days_are_told(yard, server, said):
    server.on("GET", "/projects/vision/retention", said(200, {"project": "vision", "rules": RULES}))
    code, out, _ = yard("project", "keep", "vision")
    assert (code, [line.split("\t") for line in out.splitlines()]) == (0, TABLE)


def test_the_days_are_set(yard, server, said):
    server.on("PUT", "/projects/vision/retention", said(200, {"project": "vision", "rules": RULES}))
    code, out, _ = yard("project", "keep", "vision", "--days", "logs=14", "--days", "jobs=usual")
    assert (code, [line.split("\t") for line in out.splitlines()]) == (0, TABLE)
    assert server.asked[-1].json == {"days": {"logs": 14, "jobs": None}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("keep",), "say which project"),
        (("keep", "vision", "--days", "logs"), "is not like logs=14"),
        (("keep", "vision", "--days", "logs=-1"), "is not like logs=14"),
        (("show", "vision", "--days", "logs=3"), "--days is for yard project keep"),
    ],
)
def test_what_is_wrong_is_said(yard, words, said):
    code, _, err = yard("project", *words)
    assert code == 2
    assert said in err
