"""Mounts: below what the pool declares, on nodes that have it, readonly unless both say otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents import protocol
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.pools.models import Pool
from tests.controlplane.people import Town
from tests.record.yard import Agent


@pytest.fixture
def agent(town: Town) -> Agent:
    Pool.objects.filter(name="default").update(
        mounts=[{"path": "/data", "writable": False}, {"path": "/data/scratch", "writable": True}]
    )
    found = town.machine()
    Node.objects.update(mounts=["/data"])
    return found


def submitted(town: Town, *mounts: Any, **more: Any) -> Any:
    return town.owner.post("/jobs", {"name": "j", "run": "true", "mounts": list(mounts), **more})


@pytest.mark.parametrize(
    ("mount", "at"),
    [
        ({"source": "/etc"}, "source"),
        ({"source": "/data/../etc"}, "source"),
        ({"source": "/database"}, "source"),
        ({"source": "data"}, "source"),
        ({"source": "/"}, "source"),
        ({"source": "/data/a,b"}, "source"),
        ({"source": "/data//x"}, "source"),
        ({"source": "nfs://data"}, "source"),
        ({}, "source"),
        ({"source": "/data", "readonly": False}, "readonly"),
        ({"source": "/data", "path": "/elsewhere"}, "path"),
        ({"source": "/data", "mode": "rw"}, "mode"),
        ("/data", ""),
    ],
)
def test_what_is_not_declared_is_refused_with_its_field(town: Town, agent: Agent, mount: Any, at: str) -> None:
    answer = submitted(town, mount)
    assert answer.status_code == 422, answer.content
    pointers = [each["pointer"] for each in json.loads(answer.content)["errors"]]
    assert f"/mounts/0{'/' if at else ''}{at}" in pointers, answer.content


def test_the_order_has_the_mounts_and_the_pools_word_counts_at_the_start(town: Town, agent: Agent) -> None:
    image = {"image": "registry.local/x:1"}
    assert submitted(town, {"source": "/data/proc", "path": "/proc/x"}, **image).status_code == 422
    assert (
        submitted(town, {"source": "/data/a", "path": "/in"}, {"source": "/data/b", "path": "/in"}).status_code == 422
    )
    both = {"source": "/data/images", "path": "/in"}, {"source": "/data/scratch/x", "readonly": False}
    answer = submitted(town, *both, **image)
    assert answer.status_code == 201, answer.content
    town.cycle()
    (wanted,) = agent.look()
    assert wanted.spec is not None
    assert wanted.spec.mounts == [
        protocol.Mount("/data/images", "/in"),
        protocol.Mount("/data/scratch/x", "/data/scratch/x", readonly=False),
    ]
    Pool.objects.filter(name="default").update(mounts=[{"path": "/data", "writable": False}])
    (wanted,) = agent.look()
    assert wanted.spec is not None
    assert (wanted.spec.argv, wanted.spec.refused) == (
        [],
        ("MountUndeclared", {"pool": "default", "folder": "/data/scratch/x"}),
    )


def test_a_folder_is_not_written_by_way_of_the_one_that_it_lies_in(town: Town, agent: Agent) -> None:
    """What the pool declares as readonly stays so where the folder around it may be written."""
    gold, beside = {"path": "/data/gold", "writable": False}, {"source": "/data/x", "readonly": False}
    Pool.objects.filter(name="default").update(mounts=[{"path": "/data", "writable": True}, gold])
    answer = submitted(town, {"source": "/data", "readonly": False})
    assert answer.status_code == 422, answer.content
    (told,) = json.loads(answer.content)["errors"]
    assert (told["pointer"], told["code"], "/data/gold" in told["detail"]) == (
        "/mounts/0/readonly",
        "not_writable",
        True,
    )
    assert [submitted(town, each).status_code for each in ({"source": "/data"}, beside)] == [201, 201]
    Pool.objects.filter(name="default").update(mounts=[{"path": "/data", "writable": True}])
    assert submitted(town, {"source": "/data", "readonly": False}).status_code == 201
    Pool.objects.filter(name="default").update(mounts=[{"path": "/data", "writable": True}, gold])
    town.cycle()
    orders = [wanted.spec for wanted in agent.look() if wanted.spec]
    assert sorted((spec.mounts[0].source, spec.mounts[0].readonly, bool(spec.refused)) for spec in orders) == [
        ("/data", False, True), ("/data", True, False), ("/data/x", False, False),
    ]  # fmt: skip


def test_a_node_without_the_folder_does_not_fit_and_the_reason_says_so(town: Town, agent: Agent) -> None:
    job = Job.objects.get(number=json.loads(submitted(town, {"source": "/data/images"}).content)["number"])
    Node.objects.update(mounts=["/other"])
    town.cycle()
    assert agent.look() == []
    reason = town.owner.read(f"/jobs/{job.number}")["stages"][0]["reasons"][0]
    assert (reason["code"], reason["params"]["folders"]) == ("MountMissing", "/data/images")
    Node.objects.update(mounts=["/data"])
    town.cycle()
    assert len(agent.look()) == 1


def test_only_operators_declare_folders_and_none_of_the_system(town: Town, agent: Agent) -> None:
    def change(who: Any, *paths: str) -> int:
        tag = town.staff.get("/pools/default/settings").headers["ETag"]
        body = {"mounts": [{"path": path} for path in paths]}
        return int(who.patch("/pools/default", body, **{"If-Match": tag}).status_code)

    assert change(town.owner, "/srv") == 403
    assert change(town.staff, "/srv") == 200
    for path in ("/", "/etc/ssh", "/srv/../etc", "srv", "/proc"):
        assert change(town.staff, path) == 400, path
    Pool.objects.filter(name="default").update(storage_path="/shared/yard")
    assert [change(town.staff, path) for path in ("/shared", "/shared/yard/12", "/shared/data")] == [400, 400, 200]
    shown = next(pool for pool in town.owner.read("/pools")["results"] if pool["name"] == "default")
    assert shown["mounts"] == [{"path": "/shared/data", "writable": False}]
