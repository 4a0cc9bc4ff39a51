"""The cluster as a whole over REST: nodes, devices, overview, timeline, quotas, measurements, decisions."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.protocol import Conditions, DeviceError, Fetched, Link, Phase
from controlplane.api import live
from controlplane.clauses import HIDDEN
from controlplane.fleet import node_links
from controlplane.fleet.models import Device, DeviceSample, Host, Node, PartSample
from controlplane.jobs.models import Attempt, Claim, Decision, Part, Stage
from controlplane.pools.models import Quota
from controlplane.queries import (
    attempts,
    capacity_history,
    decisions,
    device_map,
    devices,
    events,
    gangs,
    loads,
    metrics,
    nodes,
    overview,
    pools,
    projects,
    quotas,
    search,
    timeline,
    topology,
)
from controlplane.queries.cursor import Page
from tests.controlplane.people import Town
from tests.record.yard import Agent, cpu, gpu

SHAPES: dict[str, Any] = {
    "/nodes": Page[nodes.Node],
    "/nodes/n1": nodes.NodeDetail,
    "/devices": Page[devices.Device],
    "/devices/GPU-n1-0": devices.Device,
    "/topology": Page[topology.Topology],
    "/pools": dict[str, list[pools.Pool]],
    "/pools/default": pools.Pool,
    "/projects": dict[str, list[projects.Project]],
    "/projects/default": projects.Project,
    "/quotas": dict[str, list[quotas.Quota]],
    "/overview": overview.Overview,
    "/overview/history": capacity_history.CapacityHistory,
    "/overview/loads": loads.Loads,
    "/overview/gangs": dict[str, list[gangs.Gang]],
    "/search?q=n1": search.Search,
    "/timeline": timeline.Timeline,
    "/events": Page[events.JobEvent],
    "/decisions": Page[decisions.Decision],
}


def measure(agent: Agent, utilisation: float, *, age_s: float = 1.0) -> None:
    """One sample of each device of the machine."""
    for device in Device.objects.filter(node=agent.node):
        DeviceSample.objects.create(
            device=device,
            at=timezone.now() - timedelta(seconds=age_s),
            utilisation=utilisation,
            memory_used_bytes=1024,
            power_w=250.0,
            temperature_c=50.0,
        )


@pytest.fixture
def busy(town: Town) -> Agent:
    """A machine with a running job on one GPU and another job that waits for two."""
    agent = town.machine()
    Quota.objects.create(project=town.project, kind="gpu", nominal=2)
    measure(agent, 0.5)
    town.running(agent, name="runs", stages=[{"name": "fit", "kind": "train", "run": "x"}])
    town.job(name="waits", devices={"kind": "gpu", "count": 2})
    town.cycle()
    return agent


@pytest.mark.parametrize("path", sorted(SHAPES))
def test_answers_have_the_shape_that_the_schema_tells(town: Town, busy: Agent, path: str) -> None:
    for person in (town.owner, town.viewer, town.staff):
        answer = person.get(path)
        assert answer.status_code == 200
        msgspec.json.decode(answer.content, type=SHAPES[path], strict=True)


def test_a_node_shows_its_devices_and_who_holds_them(town: Town, busy: Agent) -> None:
    node = town.owner.read("/nodes/n1")
    assert town.owner.read(f"/nodes/{busy.node.id}") == node
    assert [device["kind"] for device in node["devices"]] == ["cpu", "gpu", "gpu"]
    held = [device for device in node["devices"] if device["kind"] == "gpu" and device["claimed_milli"]]
    assert [(claim["stage"], claim["user"], claim["milli"]) for claim in held[0]["claims"]] == [("fit", "owner", 1000)]
    assert held[0]["sample"]["utilisation"] == 0.5
    assert node["host"]["interfaces"] == []
    assert town.owner.get("/nodes/n9").status_code == 404
    assert town.owner.get("/devices/none").status_code == 404


def test_a_node_tells_how_its_host_is_and_nothing_that_is_old(town: Town, busy: Agent) -> None:
    Host.objects.filter(node=busy.node).update(
        at=timezone.now(),
        interfaces=[{"name": "eth0", "bits_per_s": 10**10, "is_up": True}],
        disks=[{"name": "sda", "size_bytes": 1 << 40}],
        file_systems=[{"mount": "/", "type": "ext4", "size_bytes": 1 << 40}, {"mount": "/far", "type": "nfs4"}],
        per_s={"received": {"eth0": 5.5}, "written": {"sda": 7.0}},
        free_bytes={"/": 1 << 30},
        pressure={"io_full": 2.0},
    )
    host = town.viewer.read("/nodes/n1")["host"]
    assert host["interfaces"] == [
        {
            "name": "eth0",
            "bits_per_s": 10**10,
            "is_up": True,
            "received_bytes_per_s": 5.5,
            "sent_bytes_per_s": None,
        }
    ]
    assert (host["disks"][0]["written_bytes_per_s"], host["disks"][0]["read_bytes_per_s"]) == (7.0, None)
    assert [each["free_bytes"] for each in host["file_systems"]] == [1 << 30, None]
    Host.objects.filter(node=busy.node).update(at=timezone.now() - timedelta(hours=1))
    host = town.viewer.read("/nodes/n1")["host"]
    assert host["interfaces"][0]["received_bytes_per_s"] is None
    assert (host["file_systems"][0]["free_bytes"], host["pressure"]) == (None, {})


def test_lists_of_the_fleet_are_narrowed(town: Town, busy: Agent) -> None:
    town.agent("n2")

    def names(path: str) -> list[str]:
        return [each.get("name") or each["uuid"] for each in town.owner.read(path)["results"]]

    assert names("/nodes") == ["n1", "n2"]
    assert names("/nodes?q=2") == ["n2"]
    assert names("/nodes?limit=1") == ["n1"]
    assert names("/nodes?pool=default&state=READY") == ["n1", "n2"]
    assert names("/nodes?state=lost") == names("/nodes?pool=other") == []
    assert names("/devices?kind=gpu") == names("/devices?q=h100") == ["GPU-n1-0", "GPU-n1-1"]
    assert names("/devices?node=n2") == ["cpu-n2"]


def test_an_old_measurement_is_not_shown_as_now(town: Town) -> None:
    agent = town.machine()
    measure(agent, 0.9, age_s=300)
    assert {device["sample"] for device in town.owner.read("/devices")["results"]} == {None}


def test_the_overview_counts_what_there_is(town: Town, busy: Agent) -> None:
    found = msgspec.json.decode(town.owner.get("/overview").content, type=overview.Overview)
    cpu, gpu = found.tiles
    assert (cpu.kind, cpu.unit, cpu.total, cpu.healthy) == ("cpu", "cores", 8.0, 8.0)
    assert (gpu.kind, gpu.unit, gpu.total, gpu.healthy, gpu.allocated, gpu.used_mean) == (
        "gpu",
        "devices",
        2,
        2,
        1,
        0.5,
    )
    assert [(each.name, each.stage, each.state) for each in found.running] == [("runs", "fit", "RUNNING")]
    assert found.queue.waiting == 1
    assert found.queue.oldest_at is not None
    assert found.counts.jobs == {"RUNNING": 1, "PENDING": 1}
    assert found.counts.nodes == {"READY": 1}
    assert found.counts.devices == {"allocated": 2, "free": 1}
    assert found.attention == []


def test_the_overview_points_at_what_needs_somebody(town: Town, busy: Agent) -> None:
    broken = DeviceError(uuid="GPU-n1-1", code="XID 79", detail="fell off the bus")
    busy.report(conditions=Conditions(disk_pressure=True, device_errors=[broken]))
    town.agent("n2")
    Node.objects.filter(name="n2").update(state="LOST", reason="no report since noon")
    hour = timedelta(hours=2)
    Stage.objects.filter(job__name="waits").update(eligible_at=timezone.now() - hour)
    found = msgspec.json.decode(town.owner.get("/overview").content, type=overview.Overview)
    signs = {sign.href: sign for sign in found.attention}
    assert signs["/nodes/n2"].level == signs["/devices/GPU-n1-1"].level == "critical"
    assert "XID 79" in signs["/devices/GPU-n1-1"].detail
    assert "/nodes/n1" in signs
    assert any("waited" in sign.title for sign in found.attention)
    assert [sign.level for sign in found.attention] == sorted(
        (s.level for s in found.attention), key="critical warning".find
    )
    assert {cell.state for node in found.nodes for cell in node.devices} >= {"offline", "unhealthy", "allocated"}


def test_signs_speak_the_readers_language_and_keep_their_codes(town: Town, busy: Agent) -> None:
    broken = DeviceError(uuid="GPU-n1-1", code="XID 79", detail="fell off the bus")
    busy.report(conditions=Conditions(disk_pressure=True, device_errors=[broken]))
    reason = {"code": "PlannedLater", "params": {"time": "18:00"}, "text": "the timetable lets it start at 18:00"}
    Stage.objects.filter(job__name="waits").update(
        eligible_at=timezone.now() - timedelta(hours=2), reasons=[{**reason, "acts": "nobody"}]
    )

    def signs(language: str) -> dict[str, overview.Sign]:
        content = town.owner.get("/overview", **{"Accept-Language": language}).content
        return {sign.code: sign for sign in msgspec.json.decode(content, type=overview.Overview).attention}

    english, chinese = signs("en"), signs("zh-CN")
    assert set(english) == set(chinese) == {"DeviceUnhealthy", "DiskPressure", "LongWait"}
    for code, sign in english.items():
        assert chinese[code].params == sign.params
        assert (chinese[code].title != sign.title, chinese[code].action != sign.action) == (True, True)
    assert english["DiskPressure"].params == {"node": "n1"}
    assert english["LongWait"].params["reason"] == "PlannedLater"
    assert english["LongWait"].detail == reason["text"]
    assert "18:00" in chinese["LongWait"].detail != reason["text"]
    assert chinese["DeviceUnhealthy"].detail == english["DeviceUnhealthy"].detail  # what a machine said stays


def test_what_runs_is_expected_to_end_as_predicted_and_as_its_progress_says(town: Town, busy: Agent) -> None:
    stage = Stage.objects.get(job__name="runs")
    number, now = stage.job.number, timezone.now()

    def left_s(progress: dict[str, Any] | None, **attempt: Any) -> list[int | None]:
        """Minutes to the expected end, by the attempts and by every bar of the timeline."""
        Stage.objects.filter(pk=stage.pk).update(progress=progress)
        began = {"created_at": now - timedelta(minutes=20), "started_at": now - timedelta(minutes=20)}
        stage.attempts.update(**began, **attempt)
        bars = msgspec.json.decode(town.owner.get("/timeline").content, type=timeline.Timeline).segments
        told = msgspec.json.decode(town.owner.get(f"/jobs/{number}/attempts").content, type=attempts.AttemptPage)
        ends = [told.results[0].expected_end_at, *(bar.expected_end_at for bar in bars if bar.job == number)]
        assert len(ends) == 3
        return sorted({None if end is None else round((end - now).total_seconds() / 60) for end in ends}, key=str)

    hour = {"p50_s": 7200.0, "p90_s": 14_400.0, "basis": "declared limits", "speed": 2.0}
    assert left_s(None, estimate=hour) == [40]
    assert left_s({"step": 1, "total": 100, "phase": ""}) == [40]
    assert left_s({"step": 25, "total": 100, "phase": ""}) == [60]
    assert left_s({"step": 25, "total": 100, "phase": ""}, number=2) == [45]
    assert left_s(None, estimate={}) == [None]
    assert left_s(None, estimate={**hour, "p50_s": 600.0}) == [100], "later than usual: by its P90"
    assert left_s({"step": 100, "total": 100, "phase": ""}, estimate=hour) == [40], "done, and still runs"
    assert left_s(None, estimate={**hour, "p50_s": 600.0, "p90_s": 1200.0}) == [None]
    overdue = town.owner.read(f"/jobs/{number}/attempts")["results"][0]["overdue_since_at"]
    assert abs((now - timedelta(minutes=10) - datetime.fromisoformat(overdue)).total_seconds()) <= 2
    assert left_s(None, estimate={**hour, "p50_s": 9e9}) == [round(stage.request["time_limit_s"] / 60) - 20]
    assert left_s(None, estimate=hour, stop_why="CANCELLED") == [None]


def test_a_stage_past_its_time_limit_is_overdue_and_stays_so_in_the_timeline_when_it_ended(
    town: Town, busy: Agent
) -> None:
    stage = Stage.objects.get(job__name="runs")
    limit = timedelta(seconds=stage.request["time_limit_s"])
    began = timezone.now() - limit - timedelta(minutes=30)
    stage.attempts.update(created_at=began, started_at=began, estimate={})
    Part.objects.filter(attempt__stage=stage).update(started_at=began)
    Claim.objects.filter(part__attempt__stage=stage).update(opened_at=began)

    def overdue() -> set[datetime | None]:
        bars = msgspec.json.decode(town.owner.get("/timeline").content, type=timeline.Timeline).segments
        return {bar.overdue_since_at for bar in bars if bar.job == stage.job.number}

    assert overdue() == {(began + limit).replace(microsecond=0)}
    busy.end(stage)
    assert overdue() == {(began + limit).replace(microsecond=0)}


def test_a_device_that_is_held_and_idle_is_noticed(town: Town, busy: Agent) -> None:
    claim = Claim.objects.get(device__kind="gpu", closed_at=None)
    DeviceSample.objects.filter(device=claim.device).delete()
    Claim.objects.filter(pk=claim.pk).update(opened_at=timezone.now() - timedelta(minutes=20))
    for age_s in (1, 300, 600):
        DeviceSample.objects.create(device=claim.device, at=timezone.now() - timedelta(seconds=age_s), utilisation=0.0)
    found = msgspec.json.decode(town.owner.get("/overview").content, type=overview.Overview)
    assert [tile.held_idle for tile in found.tiles if tile.kind == "gpu"] == [1.0]
    assert any("idle" in sign.title for sign in found.attention)
    DeviceSample.objects.create(device=claim.device, at=timezone.now() - timedelta(seconds=60), utilisation=0.9)
    found = msgspec.json.decode(town.owner.get("/overview").content, type=overview.Overview)
    assert [tile.held_idle for tile in found.tiles if tile.kind == "gpu"] == [0.0]


def test_the_overview_takes_the_same_queries_however_large_the_cluster(town: Town, busy: Agent) -> None:
    with CaptureQueriesContext(connection) as small:
        town.owner.read("/overview")
    for name in ("n2", "n3", "n4"):
        town.running(town.machine(name), name=name, devices={"kind": "gpu"})
    with CaptureQueriesContext(connection) as large:
        town.owner.read("/overview")
    assert len(large) == len(small) < 25


def test_the_timeline_has_past_present_and_plan(town: Town, busy: Agent) -> None:
    done = town.running(busy, name="done", devices={"kind": "cpu"})
    busy.end(done.stages.get())
    waiting = Stage.objects.get(job__name="waits")
    gpus = [str(i) for i in Device.objects.filter(kind="gpu").values_list("id", flat=True)]
    start = timezone.now() + timedelta(minutes=10)
    entry = {"start_at": start.isoformat(), "end_at": (start + timedelta(minutes=5)).isoformat(), "devices": gpus}
    Stage.objects.filter(pk=waiting.pk).update(planned=entry)
    found = msgspec.json.decode(town.owner.get("/timeline").content, type=timeline.Timeline)
    assert [lane.device for lane in found.lanes] == ["cpu-n1", "GPU-n1-0", "GPU-n1-1"]
    by_name: dict[Any, list[timeline.Segment]] = {}
    for segment in found.segments:
        by_name.setdefault(segment.name, []).append(segment)
    assert [(s.lane, s.state, s.planned) for s in by_name["done"]] == [("cpu-n1", "COMPLETED", False)]
    assert by_name["done"][0].end_at is not None
    assert {(s.state, s.end_at, s.planned) for s in by_name["runs"]} == {("RUNNING", None, False)}
    assert sorted((s.lane, s.planned, s.milli) for s in by_name["waits"]) == [
        ("GPU-n1-0", True, 1000),
        ("GPU-n1-1", True, 1000),
    ]
    assert not found.truncated
    assert all(s.project == "default" and s.user == "owner" for s in found.segments)
    theirs = msgspec.json.decode(town.stranger.get("/timeline").content, type=timeline.Timeline).segments
    assert [(s.lane, s.planned) for s in theirs] == [(s.lane, s.planned) for s in found.segments]
    assert {(s.job, s.name, s.stage, s.project, s.user) for s in theirs} == {(None,) * 5}


def test_the_timeline_keeps_to_its_span_and_pool(town: Town, busy: Agent) -> None:
    def segments(query: str) -> int:
        return len(town.owner.read(f"/timeline?{query}")["segments"])

    now = timezone.now()
    assert segments("from=-60&to=60") == 2
    assert segments(f"from={(now - timedelta(hours=2)):%Y-%m-%dT%H:%M:%SZ}&to=-3000") == 0
    assert town.owner.read("/timeline?pool=other")["lanes"] == []
    for bad in ("from=60&to=-60", "from=yesterday", "to=2027-01-01T00:00:00", "from=-99999999", "from=inf"):
        assert town.owner.get(f"/timeline?{bad}").status_code == 400, bad


def test_the_timeline_reaches_every_node_by_parts_of_names_and_by_pages(town: Town, busy: Agent) -> None:
    for name in ("n10", "n2", "other"):
        town.machine(name)

    def nodes(query: str) -> tuple[list[str], int]:
        found = town.owner.read(f"/timeline?{query}")
        return list(dict.fromkeys(lane["node"] for lane in found["lanes"])), found["node_count"]

    assert nodes("") == (["n1", "n2", "n10", "other"], 4)
    assert nodes("node=N1") == (["n1", "n10"], 2)
    assert nodes("nodes=2") == (["n1", "n2"], 4)
    assert nodes("nodes=2&skip=2") == (["n10", "other"], 4)
    assert nodes("skip=9&pool=default") == ([], 4)
    for bad in ("nodes=0", "nodes=1001", "skip=-1", f"node={'n' * 64}", "nodes=all"):
        assert town.owner.get(f"/timeline?{bad}").status_code == 400, bad


def test_the_timeline_says_when_it_shows_a_part_only(town: Town, busy: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_SEGMENTS", 1)
    found = town.owner.read("/timeline")
    assert (len(found["segments"]), found["truncated"]) == (1, True)


def test_quotas_tell_what_is_held(town: Town, busy: Agent) -> None:
    assert [(q["kind"], q["nominal"], q["held"]) for q in town.owner.read("/quotas")["results"]] == [("gpu", 2.0, 1.0)]


def test_a_job_tells_what_it_used(town: Town, busy: Agent) -> None:
    part = Part.objects.get(attempt__stage__name="fit")
    now = timezone.now()
    Claim.objects.filter(part=part).update(opened_at=now - timedelta(minutes=10))
    DeviceSample.objects.all().delete()
    gpu = Claim.objects.get(part=part, device__kind="gpu").device
    for seconds in range(0, 1200, 10):
        at = now - timedelta(seconds=seconds)
        DeviceSample.objects.create(device=gpu, at=at, utilisation=seconds / 2000, memory_used_bytes=2**33)
        PartSample.objects.create(part_id=part.id, at=at, cpu=1.5, rss_bytes=2**30)
    number = part.attempt.stage.job.number
    found = msgspec.json.decode(town.owner.get(f"/jobs/{number}/metrics?since_s=1500").content, type=metrics.JobSeries)
    (device,), (process,) = found.devices, found.parts
    assert len(found.at) == len(device.utilisation) == len(process.cpu) == 300
    assert (device.uuid, process.stage, process.rank) == (gpu.uuid, "fit", 0)
    measured = [value for value in device.utilisation if value is not None]
    # What was measured before the job held the device is not the job's.
    assert 55 <= len(measured) <= 61
    assert max(measured) <= 0.3
    assert {value for value in process.cpu if value is not None} == {1.5}
    for seconds in ("0", "-1", "1e9", "x", "nan"):
        assert town.owner.get(f"/jobs/{number}/metrics?since_s={seconds}").status_code == 400, seconds


def test_decisions_name_only_what_one_may_see(town: Town, busy: Agent) -> None:
    number = Stage.objects.get(name="fit").job.number
    fit = {"stage": f"#{number}/fit", "why": "the only node with a free GPU"}
    evicted = {"stage": f"#{number}/fit", "for": f"#{number}/fit", "price": 3.0, "gain": 9.0}
    Decision.objects.create(
        at=timezone.now(),
        profile="hybrid",
        duration_ms=1,
        waiting=2,
        started=[fit],
        evicted=[evicted],
        skipped=[fit["stage"]],
    )
    (mine,), (theirs,) = town.owner.read("/decisions")["results"], town.stranger.read("/decisions")["results"]
    assert (mine["started"], mine["evicted"], mine["skipped"]) == ([fit], [evicted], [fit["stage"]])
    hidden = {"stage": HIDDEN}
    assert theirs["started"] == [hidden]
    assert theirs["evicted"] == [{**hidden, "price": 3.0, "gain": 9.0}]
    assert theirs["skipped"] == [HIDDEN]


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs?state=active&limit=1", "/overview", "/nodes/n1", "/timeline?from=-60", "/jobs/0"]
)
def test_the_feed_reads_what_rest_answers(town: Town, busy: Agent, path: str) -> None:
    assert town.owner.user is not None
    answer = town.owner.get(path)
    status, etag, content = live.read(f"/api/v1{path}", town.owner.user)
    assert status == answer.status_code
    if status == 200 and "timeline" not in path:
        assert (etag, content) == (answer["ETag"], answer.content)
    assert msgspec.json.decode(content)


def test_the_feed_sees_with_the_eyes_of_its_user(town: Town, busy: Agent) -> None:
    assert town.stranger.user is not None
    number = Stage.objects.get(name="fit").job.number
    assert live.read(f"/api/v1/jobs/{number}", town.stranger.user)[0] == 404
    assert live.read(f"/api/v1/jobs/{number}/logs", town.staff.user or town.user)[2] == b'{"text":"","next_offset":0}'
    for address in (
        "/admin/",
        "http://elsewhere/api/v1/jobs",
        "/api/v1/../admin",
        "/api/v1/" + "x" * 3000,
        "",
        "/api/v1/",
    ):
        status, _, content = live.read(address, town.stranger.user)
        assert status == 404, address
        assert json.loads(content)["code"] == "not_found"


def test_an_attempt_tells_how_it_ended(town: Town, busy: Agent) -> None:
    fit = Stage.objects.get(name="fit")
    busy.end(fit, code=3, detail="it broke")
    (attempt,) = town.owner.read(f"/jobs/{fit.job.number}/attempts")["results"]
    assert (attempt["cause"], attempt["exit_code"], attempt["detail"]) == ("EXIT_CODE", 3, "it broke")
    assert Attempt.objects.get().ended_at is not None
    job = town.owner.read(f"/jobs/{fit.job.number}")
    assert (job["state"], job["stages"][0]["exit_code"], job["stages"][0]["detail"]) == ("FAILED", 3, "it broke")
    assert Phase.ENDED
    assert uuid.UUID(job["id"])


def test_the_topology_tells_groups_numa_nodes_and_what_links_carry(town: Town) -> None:
    near = Link("GPU-n1-1", "NVLINK", 900.0), Link("GPU-n1-0", "NVLINK", 450.0)
    host = Link("host", "PCIE", 63.0)
    cards = [
        msgspec.structs.replace(gpu("n1", i), links=[link, host], numa=i, attributes={"pcie": "gen5 x16"})
        for i, link in enumerate(near)
    ]
    agent = town.agent("n1", cpu("n1"), *cards)
    other = town.agent("n2", cpu("n2"))
    Node.objects.filter(id=agent.node.id).update(labels={"rack": "r1"}, fetch_gbps=8.0, load=0.5)
    node_links.note(agent.node, [Fetched(10**10, 10.0, other.node.name)])
    Device.objects.filter(uuid="GPU-n1-0").update(busy=0.75)
    first, second = town.stranger.read("/topology")["results"]
    assert (first["node"], first["domain"], first["gbps"], first["is_measured"], first["load"]) == (
        "n1", "rack=r1", 8.0, True, 0.5,
    )  # fmt: skip
    assert first["groups"] == [{"number": 0, "types": ["NVLINK"], "gbps": 450.0, "devices": ["gpu0", "gpu1"]}]
    card = next(device for device in first["devices"] if device["name"] == "gpu0")
    assert (card["numa"], card["group"], card["pcie"], card["busy"]) == (0, 0, "gen5 x16", 0.75)
    assert card["links"] == [
        {"peer": "gpu1", "type": "NVLINK", "gbps": 900.0},
        {"peer": "host", "type": "PCIE", "gbps": 63.0},
    ]
    (measured,) = first["measured"]
    assert (measured["node"], measured["gbps"]) == ("n2", 8.0)
    assert (second["domain"], second["gbps"], second["groups"], second["measured"]) == ("node=n2", None, [], [])
    Node.objects.filter(id=agent.node.id).update(labels={"rack": "r1", "link-gbps": "400"})
    (declared,) = town.owner.read("/topology?node=n1")["results"]
    assert (declared["gbps"], declared["is_measured"]) == (400.0, False)
    assert town.owner.read("/topology?pool=nowhere")["results"] == []


def test_a_node_tells_what_it_has_as_a_whole_and_what_of_it_is_held(town: Town) -> None:
    agent = town.agent("n1", cpu("n1"), disk_bytes=1 << 40)
    Node.objects.filter(id=agent.node.id).update(labels={"disk-mbps": "3000", "link-gbps": "10"})
    town.running(agent, disk="200GiB", disk_bandwidth="500MB/s")
    assert town.stranger.read("/nodes/n1")["amounts"] == {
        "disk_total_bytes": 1 << 40, "disk_bytes": 1 << 40, "disk_held_bytes": 200 << 30,
        "disk_mbps": 3000, "disk_held_mbps": 500, "network_mbps": 1250, "network_held_mbps": 0,
    }  # fmt: skip


def test_the_page_counts_the_cores_of_all_models_of_cpus_together(town: Town) -> None:
    town.agent("n1", cpu("n1"), gpu("n1"))
    town.agent("n2", msgspec.structs.replace(cpu("n2"), model="EPYC 9654"))
    seen = device_map.seen(device_map.nodes_now(), {})
    assert [(tile.model, tile.total) for tile in overview.tiles(seen) if tile.kind == "cpu"] == [
        ("EPYC 9654", 2.0), ("Xeon", 2.0),
    ]  # fmt: skip
    (cores,) = (tile for tile in overview.tiles(seen, is_folded=True) if tile.kind == "cpu")
    assert (cores.model, cores.total) == ("", 4.0)
    browser = Client()
    browser.force_login(town.owner.user)
    page = browser.get("/").content.decode()
    assert page.count('class="y-tile"') == 2
    assert "CPU cores" in page
