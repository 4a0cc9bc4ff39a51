"""``yard template``: what is asked of the control plane, and what people read."""

from __future__ import annotations

import json
from typing import Any

ONE: dict[str, Any] = {
    "name": "sft", "project": "vision", "title": "Ours", "description": "Needs an image.", "job": {"run": "x {{n}}"},
    "parameters": [{"name": "n", "type": "integer", "min": 1, "max": 4, "default": 1}],
    "made_by": "ann", "changed_at": "2027-01-28T02:00:00Z",
}  # fmt: skip


def test_templates_are_listed_shown_set_and_deleted(yard, server, said, tmp_path):
    server.on("GET", "/templates", said(200, {"results": [ONE]}))
    server.on("GET", "/templates/sft", said(200, ONE))
    server.on("PUT", "/templates/sft", said(201, ONE))
    server.on("DELETE", "/templates/sft", said(204, None))
    assert "vision" in yard("template")[1]
    assert yard("template", "show", "sft", "--project", "vision")[1].splitlines() == [
        "template sft: Ours", "  Needs an image.", "  n           integer 1 to 4; default 1",
    ]  # fmt: skip
    file = tmp_path / "ours.yaml"
    file.write_text("title: Ours\njob: {run: 'x'}\n")
    assert yard("template", "create", "sft", str(file), "--project", "vision")[:2] == (0, "template sft is set\n")
    assert json.loads(server.asked[-1].body) == {"title": "Ours", "job": {"run": "x"}}
    assert yard("template", "delete", "sft")[0] == 0
    for words in (("show",), ("create", "sft"), ("show", "sft", "--set", "n=1")):
        assert yard("template", *words)[0] == 2


def test_a_job_is_submitted_with_its_values(yard, server, said):
    server.on("POST", "/templates/sft/fill", said(200, {"job": {"run": "x 2"}}))
    server.on("POST", "/jobs", said(201, {"id": "a", "number": 7, "name": "sft", "state": "PENDING", "stages": []}))
    code, out, _ = yard("template", "submit", "sft", "--set", "n=2", "--project", "vision")
    assert (code, out) == (0, "submitted job 7 (sft)\n")
    asked = [json.loads(one.body) for one in server.asked if one.body]
    assert asked[0] == {"set": {"n": "2"}, "project": "vision"}
    assert asked[-1] == {"run": "x 2"}
