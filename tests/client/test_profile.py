"""``yard profile``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import json
from typing import Any

import pytest

SHOWN: dict[str, Any] = {
    "name": "night", "description": "Long jobs", "builtin": False, "active": 1, "newest": 2, "pools": ["default"],
    "beside": [],
}  # fmt: skip
VERSION: dict[str, Any] = {
    "spec": {}, "note": "", "made_by": "ann", "made_at": "2027-01-28T02:00:00Z", "preview": 3, "preview_phase": "DONE",
    "activated_by": "", "activated_at": None,
}  # fmt: skip
DETAIL: dict[str, Any] = {
    "profile": SHOWN,
    "spec": {"policies": {"fifo": {}, "pack": {"weight": 2}}},
    "versions": [{**VERSION, "number": 2, "note": "plain"}, {**VERSION, "number": 1}],
}


def test_profiles_are_listed_and_shown(yard, server, said):
    server.on("GET", "/profiles", said(200, {"results": [SHOWN], "default": "hybrid"}))
    server.on("GET", "/profiles/night", said(200, DETAIL))
    assert yard("profile", "-o", "name")[1] == "night\n"
    assert yard("profile", "show", "night")[1].splitlines() == [
        "profile night: Long jobs",
        "  pools          default",
        "  evaluated in   -",
        "  policy         fifo",
        "  policy         pack                    weight=2",
        "  version 2      done        ann  plain",
        "  version 1      active      ann",
    ]


def test_a_version_is_made_previewed_and_activated(yard, server, said, tmp_path):
    for path in ("", "/night/versions", "/night/activate"):
        server.on("POST", f"/profiles{path}", said(201, DETAIL))
    server.on("POST", "/profiles/night/versions/2/preview", said(201, {"id": 9}))
    server.on("POST", "/profiles/night/delete", said(204, None))
    server.on("PATCH", "/profiles/night", said(200, DETAIL))
    file = tmp_path / "night.yaml"
    file.write_text("policies: {fifo: {}}\n")
    assert yard("profile", "create", "night", "--copy-of", "hybrid")[0] == 0
    code, out, _ = yard("profile", "revise", "night", str(file), "--note", "plain")
    assert (code, out) == (0, "version 2 of night is made; it decides nowhere yet\n")
    assert yard("profile", "preview", "night", "2", "--pool", "default", "-o", "name")[1] == "9\n"
    assert yard("profile", "activate", "night", "2", "--unseen")[0] == 0
    assert yard("profile", "change", "night", "--description", "Long jobs")[0] == 0
    assert yard("profile", "delete", "night")[0] == 0
    assert [json.loads(one.body) for one in server.asked] == [
        {"name": "night", "note": "", "copy_of": "hybrid"},
        {"spec": {"policies": {"fifo": {}}}, "note": "plain"},
        {"pool": "default", "days": 7.0, "against": ""},
        {"version": 2, "unseen": True},
        {"description": "Long jobs"},
        {},
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("show",), ("create", "n"), ("create", "n", "f", "--copy-of", "x"), ("revise", "n"), ("activate", "n"),
        ("activate", "n", "two"), ("preview", "n", "2"), ("change", "n"), ("list", "--unseen"),
        ("activate", "n", "2", "--note", "x"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused_before_anything_is_asked(yard, server, words):
    assert yard("profile", *words)[0] == 2
    assert server.asked == []
