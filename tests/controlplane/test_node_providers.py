"""Providers of nodes over REST and on their page: who may, what is refused, and what a job may wait for."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from controlplane.providers.models import NodeProvider, Pilot
from tests.controlplane.people import Town

SHAPE = {"name": "small", "cpus": 4, "memory_gib": 8, "devices": [{"kind": "gpu", "model": "NVIDIA L4", "count": 2}]}
HPC = {"name": "hpc", "kind": "slurm", "pool": "default", "settings": {"python": "/opt/python"}, "shapes": [SHAPE]}


def made(town: Town, **more: Any) -> NodeProvider:
    answer = town.staff.post("/providers", {**HPC, **more})
    assert answer.status_code == 201, answer.content
    return NodeProvider.objects.get(name="hpc")


def test_only_operators_see_and_set_them_up(town: Town) -> None:
    made(town)
    for person in (town.owner, town.lead, town.stranger):
        assert person.get("/providers").status_code == 403
        assert person.get("/providers/hpc").status_code == 403
        assert person.get("/providers/hpc/pilots").status_code == 403
        assert person.post("/providers", HPC).status_code == 403
        assert person.patch("/providers/hpc", {"enabled": False}, **{"if-match": "*"}).status_code == 403
    shown = town.staff.get("/providers/hpc").json()
    assert (shown["condition"], shown["pilots"], shown["used_node_hours"]) == ("", {}, 0)
    assert "tag" not in shown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "local"),
        ("kind", "os"),
        ("settings", {}),
        ("settings", {"python": "python3"}),
        ("settings", {"python": "/opt/../etc/python"}),
        ("settings", {"python": "/opt/python; id"}),
        ("settings", {"python": "/opt/python", "partition": "gpu --uid=0"}),
        ("settings", {"python": "/opt/python", "account": "-x"}),
        ("settings", {"python": "/opt/python", "options": "--wrap=id"}),
        ("settings", ["python"]),
        ("shapes", []),
        ("shapes", [SHAPE, SHAPE]),
        ("shapes", [{**SHAPE, "cpus": 0}]),
        ("shapes", [{**SHAPE, "cpus": True}]),
        ("shapes", [{**SHAPE, "memory_gib": 1e300}]),
        ("shapes", [{**SHAPE, "gres": "gpu:4 --uid=0"}]),
        ("shapes", [{**SHAPE, "devices": [{"kind": "gpu", "count": 10**9}]}]),
        ("shapes", [{"name": "small"}]),
        ("max_nodes", 100_000),
        ("min_nodes", 7),
        ("hours", 0),
        ("hours", 1e9),
        ("budget_node_hours", -1),
        ("tag", "000000000000"),
        ("condition", "well"),
    ],
)
def test_what_no_engine_should_be_told_is_refused_with_its_field(town: Town, field: str, value: object) -> None:
    answer = town.staff.post("/providers", {**HPC, field: value})
    assert answer.status_code == 400, answer.content
    assert any(each["pointer"].startswith(f"/{field}") for each in answer.json()["errors"]), answer.json()
    assert not NodeProvider.objects.exists()


def test_one_is_changed_as_it_was_read_and_keeps_its_name(town: Town) -> None:
    made(town)
    read = town.staff.get("/providers/hpc/settings")
    changed = town.staff.patch("/providers/hpc", {"hours": 4}, **{"if-match": read["ETag"]})
    assert (changed.status_code, changed.json()["hours"]) == (200, 4)
    assert town.staff.patch("/providers/hpc", {"hours": 5}, **{"if-match": read["ETag"]}).status_code == 412
    assert town.staff.patch("/providers/hpc", {"hours": 5}).status_code == 428
    assert town.staff.patch("/providers/hpc", {"name": "other"}, **{"if-match": "*"}).status_code == 400


def test_one_with_pilots_stays_and_keeps_its_kind(town: Town) -> None:
    row = made(town)
    pilot = Pilot.objects.create(provider=row, shape="small", hours=1, label="a", created_at=timezone.now())
    gone = town.staff.client.delete("/api/v1/providers/hpc", headers={"if-match": "*"})
    assert (gone.status_code, gone.json()["code"]) == (409, "in_use")
    other = {"kind": "command", "settings": {"program": "cloud"}}
    assert town.staff.patch("/providers/hpc", other, **{"if-match": "*"}).status_code == 400
    (shown,) = town.staff.get("/providers/hpc/pilots").json()["results"]
    assert (shown["id"], shown["state"], shown["node"]) == (str(pilot.pk), "ASKED", None)
    assert town.staff.get("/providers/hpc").json()["pilots"] == {"ASKED": 1}
    Pilot.objects.update(state="GONE")
    assert town.staff.client.delete("/api/v1/providers/hpc", headers={"if-match": "*"}).status_code == 204
    assert not NodeProvider.objects.exists()


def test_a_job_may_wait_for_what_a_provider_can_bring_and_for_nothing_else(town: Town) -> None:
    town.machine()
    asks = {"run": "true", "devices": {"kind": "gpu", "model": "L4", "count": 2}, "time_limit": "30m"}
    assert town.owner.post("/jobs", asks).status_code == 422
    made(town, hours=1)
    assert town.owner.post("/jobs", asks).status_code == 201
    assert town.owner.post("/jobs", {**asks, "time_limit": "59m"}).status_code == 422
    assert town.owner.post("/jobs", {**asks, "devices": {**asks["devices"], "count": 3}}).status_code == 422
    NodeProvider.objects.update(enabled=False)
    assert town.owner.post("/jobs", asks).status_code == 422


def test_the_page_tells_conditions_and_pilots_to_operators_only(town: Town, client: Any) -> None:
    row = made(town)
    NodeProvider.objects.update(condition="Slurm: <b>down</b>", said=[])
    Pilot.objects.create(
        provider=row, shape="small", hours=1, label="a", handle="77", state="UP", created_at=timezone.now()
    )
    client.force_login(town.owner.user)
    assert client.get("/providers").status_code == 403
    client.force_login(town.user)
    text = client.get("/providers").content.decode()
    assert "Slurm: &lt;b&gt;down&lt;/b&gt;" in text
    assert "77" in text
