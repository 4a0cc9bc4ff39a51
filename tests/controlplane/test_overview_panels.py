"""What the overview's panels and the API say of loads by group, of capacity over time, and of the largest gangs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.fleet.models import Device, DeviceSample, Node
from controlplane.jobs.models import Claim, Stage
from controlplane.pools.models import Pool
from controlplane.queries import capacity_history
from scheduler.core.model.lifecycle import Health, NodeState
from tests.controlplane.people import Town
from tests.record.yard import Agent


@pytest.fixture
def busy(town: Town) -> Agent:
    """A machine of two GPUs with a job on one of them."""
    agent = town.machine()
    town.running(agent, name="runs", devices={"kind": "gpu"})
    return agent


def measured(kind: str, **values: float) -> None:
    for device in Device.objects.filter(kind=kind):
        DeviceSample.objects.create(device=device, at=timezone.now() - timedelta(seconds=1), **values)


def rows(town: Town, query: str) -> dict[str, Any]:
    return {row["name"]: row for row in town.owner.read(f"/overview/loads?{query}")["results"] if row["kind"] == "gpu"}


def test_loads_tell_each_metric_by_each_group(town: Town, busy: Agent) -> None:
    DeviceSample.objects.all().delete()
    Device.objects.filter(kind="gpu").update(memory_bytes=4 * 2**30)
    measured("gpu", utilisation=0.5, memory_used_bytes=2**30, power_w=300.0, temperature_c=61.0)
    assert rows(town, "by=pool")["default"]["mean"] == 50
    assert rows(town, "by=node&metric=memory")["n1"]["mean"] == 25
    assert rows(town, "by=kind&metric=power")["gpu"]["most"] == 300
    assert [row["mean"] for row in rows(town, "by=model&metric=temperature").values()] == [61]
    share = rows(town, "by=kind&metric=allocated")["gpu"]
    assert (share["devices"], share["allocated"], share["mean"], share["least"]) == (2, 1.0, 50, 0)
    for bad in ("metric=speed", "by=rack", "metric=", "other=1"):
        assert town.owner.get(f"/overview/loads?{bad}").status_code == 400, bad


def test_what_was_not_measured_is_no_zero(town: Town, busy: Agent) -> None:
    DeviceSample.objects.all().delete()
    row = rows(town, "by=kind&metric=power")["gpu"]
    assert (row["known"], row["mean"], row["least"], row["most"]) == (0, None, None, None)


def test_by_project_a_stranger_learns_no_name(town: Town, busy: Agent) -> None:
    assert set(rows(town, "by=project")) == {"default"}
    theirs = town.stranger.read("/overview/loads?by=project")["results"]
    assert {row["name"] for row in theirs} == {""}


def test_history_has_the_mean_of_what_was_allocated_in_each_step(town: Town, busy: Agent) -> None:
    now = timezone.now()
    first = capacity_history.capacity_history("day", now).at[0] - timedelta(seconds=600)
    Node.objects.update(created_at=first + timedelta(seconds=700))
    claims = Claim.objects.filter(device__kind="gpu")

    def gpus() -> capacity_history.KindHistory:
        kinds = capacity_history.capacity_history("day", now).kinds
        return next(kind for kind in kinds if kind.kind == "gpu")

    claims.update(opened_at=first - timedelta(days=3))
    assert set(gpus().allocated) == {1.0}
    part, other = claims.get().part, Device.objects.get(kind="gpu", claims=None)
    busy.end(Stage.objects.get())
    claims.update(opened_at=now - timedelta(seconds=1))
    span = {"opened_at": first + timedelta(seconds=900), "closed_at": first + timedelta(seconds=1500)}
    Claim.objects.create(part=part, device=other, milli=1000, **span)
    assert gpus().allocated[:4] == [0.0, 0.5, 0.5, 0.0]
    assert gpus().capacity[:3] == [0.0, 2.0, 2.0]


def test_history_counts_the_stages_that_waited(town: Town, busy: Agent) -> None:
    now = timezone.now()
    at = capacity_history.capacity_history("day", now).at
    town.job(name="waits", devices={"kind": "gpu", "count": 2})
    stage = Stage.objects.filter(job__name="waits")
    Stage.objects.exclude(job__name="waits").update(eligible_at=None)
    stage.update(eligible_at=at[9] + timedelta(seconds=1))
    waiting = capacity_history.capacity_history("day", now).waiting
    assert (waiting[9], set(waiting[10:-1])) == (0, {1})
    stage.update(state="COMPLETED", started_at=at[19] + timedelta(seconds=1), ended_at=at[30])
    waiting = capacity_history.capacity_history("day", now).waiting
    assert [number for number, count in enumerate(waiting) if count] == list(range(10, 20))


def test_history_of_a_week_has_hours(town: Town, busy: Agent) -> None:
    found = town.owner.read("/overview/history?within=week")
    assert (found["step_s"], len(found["at"]), len(found["waiting"])) == (3600, 168, 168)
    assert {len(kind["allocated"]) for kind in found["kinds"]} == {168}
    assert town.owner.get("/overview/history?within=year").status_code == 400


def test_the_largest_gang_is_of_whole_free_devices_of_one_pool(town: Town, busy: Agent) -> None:
    def gang() -> tuple[Any, ...]:
        (found,) = [each for each in town.owner.read("/overview/gangs")["results"] if each["kind"] == "gpu"]
        free = [(each["nodes"], each["free"]) for each in found["by_node"]]
        return found["pool"], found["nodes"], found["each"], found["size"], free

    assert gang() == ("default", 1, 1, 2, [(1, 1)])
    for name in ("n2", "n3"):
        town.machine(name)
    assert gang() == ("default", 2, 2, 2, [(2, 2), (1, 1)])
    Device.objects.filter(node__name="n2", index=0, kind="gpu").update(health=Health.UNHEALTHY)
    assert gang()[1:3] == (3, 1), "three nodes with one each are more than one with two"
    Node.objects.filter(name="n3").update(state=NodeState.DRAINING)
    assert gang()[1:3] == (2, 1)
    alone = Pool.objects.create(name="alone")
    Node.objects.get(name="n2").pools.set([alone])
    assert gang()[1:3] == (1, 1), "a gang is of one pool"


def test_the_page_has_each_metric_group_and_range(town: Town, busy: Agent) -> None:
    measured("gpu", utilisation=0.5, memory_used_bytes=2**30, power_w=340.0, temperature_c=61.0)
    client = Client()
    client.force_login(town.owner.user)

    def shown(query: str) -> str:
        answer = client.get(f"/?{query}")
        assert answer.status_code == 200
        return answer.content.decode()

    assert '"unit": "W"' in shown("metric=power")
    assert "Largest gang that fits now" in shown("metric=power")
    for by in ("pool", "kind", "model", "project"):
        page = shown(f"metric=temperature&by={by}&history=week")
        assert 'id="overview-loads"' in page
        assert "chart-heat-0" not in page
    assert "chart-heat-0" in shown("metric=nothing&by=nothing&history=ever"), "unknown choices are the usual ones"
    assert client.get("/overview/loads-power-pool?since=").json()["deltas"]
    assert client.get("/overview/map-memory?since=").json()["deltas"]
    assert client.get("/overview/map-speed?since=").status_code == 404
