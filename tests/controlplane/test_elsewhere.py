"""``avoid``, ``only_on``, ``constraint`` and ``site`` of the job file: read with pointers, obeyed, told,
and refused where nothing would be left.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from controlplane.fleet import world
from controlplane.fleet.models import Node
from controlplane.jobs import constraint, demand
from controlplane.jobs.models import Job
from controlplane.jobs.spec import InvalidSpec
from controlplane.scheduling.store import LiveStore, clock
from tests.controlplane.people import Town
from tests.controlplane.test_api_jobs import problem
from tests.controlplane.test_spec import accepted, refused, sentence

NODES: dict[str, Any] = {"nodes": lambda: frozenset({"gpu-01", "gpu-02"})}


def test_what_a_file_may_say() -> None:
    asked = {"run": "x", "avoid": ["gpu-02", {"rack": "r2"}, {"rank": 7}, "gpu-02"], "site": "berlin"}
    request = accepted(asked, **NODES).stages[0].request
    assert (request["avoid"], request["site"]) == (["gpu-02", "rack=r2", "rank=7"], "berlin")
    bare = accepted({"run": "x"}, **NODES).stages[0].request
    assert "avoid" not in bare
    assert "site" not in bare
    stages = [{"name": "a", "run": "x"}, {"name": "b", "run": "x", "avoid": ["gpu-01"]}]
    own = [each.request["avoid"] for each in accepted({"avoid": ["gpu-02"], "stages": stages}, **NODES).stages]
    assert own == [["gpu-02"], ["gpu-01"]]


A100 = ["*=a100", "a100=*"]
IB = ["*=ib", "ib=*"]


def _joined(times: int, pairs: int) -> str:
    """A short text of many groups: ``((a&b)|(c&d))&((e&f)|(g&h))`` with other words each."""
    return "&".join("(" + "|".join(f"(a{i}.{j}&b{i}.{j})" for j in range(pairs)) + ")" for i in range(times))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a100", [A100]),
        (" ib & a100 ", [A100, IB]),
        ("ib|a100", [sorted([*A100, *IB])]),
        ("rack=r2", [["rack=r2"]]),
        ("a100&(rack=r1|rack=r2)", [A100, ["rack=r1", "rack=r2"]]),
        ("(a100&rack=r1)|rack=r2", [[*A100, "rack=r2"], ["rack=r1", "rack=r2"]]),
        ("((a100))", [A100]),
        ("a100&a100", [A100]),
        ("|".join(f"rack=r{i}" for i in range(64)), [sorted(f"rack=r{i}" for i in range(64))]),
    ],
)
def test_a_constraint_is_groups_that_are_joined_by_and(text: str, groups: list[list[str]]) -> None:
    assert accepted({"run": "x", "constraint": text}, **NODES).stages[0].request["constraint"] == sorted(groups)


@pytest.mark.parametrize("text", ["", "a100", "rack=r2", "ib&(a100|h100)", "(a100&rack=r1)|rack=r2", "a|b|c=d"])
def test_a_constraint_is_written_as_it_is_read(text: str) -> None:
    groups = constraint.groups(text) if text else ()
    written = constraint.written(groups)
    assert (constraint.groups(written) if written else ()) == groups


def test_what_a_stage_asks_of_its_nodes_stands_in_the_list(town: Town) -> None:
    town.machine()
    Node.objects.update(labels={"rack": "r1", "gen": "a100"})
    asked = {
        "run": "x",
        "memory": "3GiB",
        "only_on": [{"rack": "r1"}],
        "avoid": [{"row": "9"}],
        "constraint": "a100&rack=r1",
        "deadline": "2h",
    }
    assert town.owner.post("/jobs", asked).status_code == 201
    (job,) = town.owner.read("/jobs")["results"]
    (stage,) = job["stages"]
    names = ("memory_bytes", "only_on", "avoid", "constraint", "reservation")
    assert [stage[name] for name in names] == [3 << 30, ["rack=r1"], ["row=9"], "a100&rack=r1", ""]
    assert datetime.fromisoformat(stage["deadline_at"]) - datetime.fromisoformat(job["submitted_at"]) == timedelta(
        hours=2
    )


def test_equal_constraints_are_held_once() -> None:
    asked = {"run": "x", "constraint": "ib&a100", "only_on": [{"rack": "r1"}]}
    first, second = (demand.only(accepted(asked, **NODES).stages[0].request) for _ in range(2))
    assert first is second
    assert first == (("rack=r1",), tuple(A100), tuple(IB))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "words with &"), (7, "words with &"), ("x" * 1001, "words with &"), ("a b", "words with &"),
        ("a,b", "words with &"), ("a=b=c", "words with &"), ("a;b", "words with &"), ("-a", "words with &"),
        ("a*2", "counts of nodes"), ("[a|b]", "counts of nodes"), ("a&b|c", "needs brackets"), ("a&", "lacks a word"),
        ("|a", "lacks a word"), ("()", "lacks a word"), ("(a", "lacks a closing"), ("a)", "closing bracket too many"),
        ("(" * 400 + "a" + ")" * 400, "inside each other"), ("|".join(["a"] * 65), "at most 64 words"),
        ("|".join(["(a&b)"] * 30), "too long"), (_joined(2, 6), "too long"), (_joined(4, 4), "too long"),
    ],
)  # fmt: skip
def test_what_is_no_constraint_is_told(text: object, said: str) -> None:
    assert refused({"run": "x", "constraint": text}, **NODES)["/constraint"] == "invalid"
    assert said in sentence({"run": "x", "constraint": text}, "/constraint", **NODES)


@pytest.mark.parametrize(
    ("asked", "pointer", "code"),
    [
        ({"only_on": "gpu-01"}, "/only_on", "not_a_list"),
        ({"only_on": ["gpu-03"]}, "/only_on/0", "unknown_value"),
        ({"only_on": [f"n{i}" for i in range(257)]}, "/only_on", "not_a_list"),
        ({"only_on": [{"rack": "a", "row": "b"}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"rack": "*"}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"rack": "r*"}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"rack": ""}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"rack": "r" * 64}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"rack": 10**64}]}, "/only_on/0", "invalid"),
        ({"only_on": [{"r" * 64: "a"}]}, "/only_on/0", "invalid"),
        ({"only_on": ["n" * 254]}, "/only_on/0", "invalid"),
        ({"avoid": "gpu-01"}, "/avoid", "not_a_list"),
        ({"avoid": ["gpu-03"]}, "/avoid/0", "unknown_value"),
        ({"avoid": [7]}, "/avoid/0", "invalid"),
        ({"avoid": [{}]}, "/avoid/0", "invalid"),
        ({"avoid": [{"rack": ["a", "b"]}]}, "/avoid/0", "invalid"),
        ({"avoid": [{"rack": "a", "row": "b"}]}, "/avoid/0", "invalid"),
        ({"avoid": [{"ra ck": "a"}]}, "/avoid/0", "invalid"),
        ({"avoid": [{"rack": True}]}, "/avoid/0", "invalid"),
        ({"site": ["a"]}, "/site", "invalid"),
        ({"site": "a b"}, "/site", "invalid"),
    ],
)
def test_what_it_may_not(asked: dict[str, Any], pointer: str, code: str) -> None:
    assert refused({"run": "x", **asked}, **NODES)[pointer] == code


@pytest.mark.parametrize("value", ["x" * 9000, {"x" * 9000: "y"}, {"rack": "x" * 9000}, [["x" * 9000]]])
@pytest.mark.parametrize("key", ["only_on", "avoid", "constraint", "site", "name", "pool", "x" * 9000])
def test_a_fault_repeats_no_word_of_thousands_of_characters(key: str, value: object) -> None:
    for given in (value, [value]):
        with pytest.raises(InvalidSpec) as raised:
            accepted({"run": "x", key: given}, **NODES)
        assert max(len(fault.detail) for fault in raised.value.errors) < 1000
        assert max(len(fault.pointer) for fault in raised.value.errors) < 500


def test_a_slip_of_the_pen_gets_the_nearest_name() -> None:
    assert "gpu-01" in sentence({"run": "x", "avoid": ["gpu01"]}, "/avoid/0", **NODES)


def two_sites(town: Town) -> None:
    """Two nodes like each other in two sites."""
    for name, site in (("n1", "east"), ("n2", "west")):
        town.machine(name)
        Node.objects.filter(name=name).update(labels={"site": site, "rack": f"r-{site}"})
    world.recent_nodes(within_s=0.0)


def where(job: Job) -> set[str]:
    return set(job.stages.get().attempts.values_list("parts__node__name", flat=True))


RESTRICTED: list[dict[str, Any]] = [
    {"only_on": ["n2"]},
    {"only_on": [{"rack": "r-west"}]},
    {"constraint": "west"},
    {"constraint": "rack&(site=west|north)"},
    {"only_on": ["n1", "n2"], "constraint": "rack=r-west"},
]
CODES = {
    "avoid": "NodesAvoided",
    "site": "DataResidency",
    "only_on": "NodesRestricted",
    "constraint": "NodesRestricted",
}


@pytest.mark.parametrize("asked", [{"avoid": ["n1"]}, {"avoid": [{"rack": "r-east"}]}, {"site": "west"}, *RESTRICTED])
def test_it_starts_elsewhere_and_says_so_where_that_is_full(town: Town, asked: dict[str, Any]) -> None:
    two_sites(town)
    ask = {"devices": {"kind": "gpu", "count": 2}, "time_limit": "1h", **asked}
    first, second = town.job(**ask), town.job(**ask)
    town.cycle()
    assert (where(first), where(second)) == ({"n2"}, set())
    (told,) = town.owner.read(f"/jobs/{second.number}/why")["stages"]
    assert told["reasons"][0]["code"] == CODES[next(iter(asked))]
    assert told["expected_start"] is not None
    tried = json.loads(town.owner.post("/jobs?dry_run=placement", {"run": "x", **ask}).content)
    assert tried["verdict"] == "queued"
    assert tried["stages"][0]["reasons"][0]["code"] == told["reasons"][0]["code"]
    running = LiveStore().load(clock()).running
    assert [bool(one.only) for one in running] == [asked in RESTRICTED]
    assert [(one.avoid, one.site) for one in running] == [
        (tuple("rack=r-east" if isinstance(each, dict) else each for each in asked.get("avoid", [])),
         asked.get("site", ""))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "code", "pointer"),
    [
        ({"avoid": ["n1", {"site": "west"}]}, "NodesAvoided", "/stages/0/avoid"),
        ({"site": "north"}, "DataResidency", "/stages/0/site"),
        ({"only_on": [{"rack": "r-north"}]}, "NodesRestricted", "/stages/0/only_on"),
        ({"constraint": "rack=r-north"}, "NodesRestricted", "/stages/0/constraint"),
        ({"only_on": ["n1"], "constraint": "west"}, "NodesRestricted", "/stages/0/constraint"),
        ({"only_on": [{"rack": "r-north"}], "constraint": "west"}, "NodesRestricted", "/stages/0/only_on"),
    ],
)
def test_what_could_never_start_is_refused_and_told_by_a_dry_run(
    town: Town, asked: dict[str, Any], code: str, pointer: str
) -> None:
    two_sites(town)
    body = problem(town.owner.post("/jobs", {"run": "x", **asked}), 422, "invalid_spec")
    assert [(each["pointer"], each["code"]) for each in body["errors"]] == [(pointer, code)]
    tried = json.loads(town.owner.post("/jobs?dry_run=placement", {"run": "x", **asked}).content)
    assert (tried["verdict"], tried["stages"][0]["reasons"][0]["code"]) == ("never", code)
    assert tried["refused"] == [{key: each[key] for key in ("pointer", "code", "detail")} for each in body["errors"]]


def test_a_name_that_no_node_has_is_refused_and_a_label_that_none_has_is_not(town: Town) -> None:
    two_sites(town)
    body = problem(town.owner.post("/jobs", {"run": "x", "avoid": ["n3"]}), 422, "invalid_spec")
    assert body["errors"][0]["pointer"] == "/avoid/0"
    assert town.owner.post("/jobs", {"run": "x", "avoid": [{"rack": "of-tomorrow"}]}).status_code == 201


def test_who_waits_may_change_where_it_runs(town: Town) -> None:
    two_sites(town)
    job = town.job(devices={"kind": "gpu", "count": 2}, only_on=["n1"], time_limit="1h", hold=True)
    body = json.loads(town.owner.patch(f"/jobs/{job.number}", {"only_on": None, "constraint": "west"}).content)
    assert body["number"] == job.number
    assert town.owner.patch(f"/jobs/{job.number}", {"constraint": "west|"}).status_code == 422
    request = job.stages.get().request
    assert "only_on" not in request
    assert request["constraint"] == [["*=west", "west=*"]]
    assert town.owner.patch(f"/jobs/{job.number}", {"hold": False}).status_code == 200
    town.cycle()
    assert where(job) == {"n2"}
