"""Disk space and bandwidth: asked in a job file, kept account of by node, told to agents, and never promised twice."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError

from agents.protocol import Exit, HostSample, Interface, Phase
from controlplane.fleet import amounts, hosts, loads
from controlplane.fleet.models import Host, Node
from controlplane.jobs import demand, node_amounts
from controlplane.jobs.models import Job, Part
from controlplane.jobs.spec import InvalidSpec
from controlplane.whatif import dry_run
from scheduler.core.model.kinds import DISK, amount_id
from scheduler.core.model.types import Grant
from tests.record.yard import GIB, Agent, Yard, cpu, stage, states

TIB = 1 << 40


def big(yard: Yard, name: str = "a") -> Agent:
    return yard.agent(name, cpu(name, cores=8), disk_bytes=TIB)


def reasons(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage(job).reasons
    return found


def test_who_asks_for_more_than_is_left_waits_until_it_is_given_back(yard: Yard) -> None:
    agent = big(yard)
    first, second = (yard.submit(disk="600GiB") for _ in range(2))
    yard.cycle()
    agent.start()
    assert (states(first)["main"], states(second)["main"]) == ("RUNNING", "PENDING")
    (said,) = [one for one in reasons(second) if one["code"] == "CapacityInsufficient"]
    assert said["params"]["kind"] == DISK
    assert said["text"].endswith("the largest free share of a node is 424 GiB of disk")
    assert Part.objects.get().disk_bytes == 600 * GIB
    agent.end(stage(first))
    yard.cycle()
    assert agent.start() == ["main"]


def test_the_agent_is_told_what_its_files_may_take_up_and_why_it_ended_is_known(yard: Yard) -> None:
    agent = big(yard)
    job = yard.submit(disk="1GiB")
    yard.cycle()
    (wanted,) = agent.look()
    assert wanted.spec is not None
    assert wanted.spec.disk_bytes == GIB
    assert [claim.kind for claim in wanted.spec.devices] == ["cpu"], "an amount of a node is no device"
    agent.start()
    said = [("DiskOver", {"used_bytes": 2 * GIB, "given_bytes": GIB})]
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=1, cause="OUT_OF_DISK", detail="its files", said=said))
    assert states(job)["main"] == "FAILED"
    assert stage(job).cause == "OUT_OF_DISK"


def test_a_dry_run_knows_of_it(yard: Yard) -> None:
    agent = big(yard)
    yard.submit(disk="900GiB")
    yard.cycle()
    agent.start()
    found = dry_run.dry_run({"name": "x", "run": "true", "disk": "200GiB"}, yard.user)
    (one,) = found["stages"]
    assert not one["starts_now"]
    assert any(reason["params"].get("kind") == DISK for reason in one["reasons"])
    fits = dry_run.dry_run({"name": "x", "run": "true", "disk": "100GiB"}, yard.user)["stages"][0]
    assert fits["starts_now"]
    assert [device["kind"] for device in fits["devices"]] == ["cpu"]


def test_what_no_node_has_is_refused_though_a_full_disk_is_not(yard: Yard) -> None:
    agent = big(yard)
    Node.objects.filter(id=agent.node.id).update(disk_bytes=64 * GIB)
    yard.submit(disk="900GiB")
    with pytest.raises(InvalidSpec, match="2048 GiB of disk") as refused:
        yard.submit(disk="2TiB")
    (fault,) = refused.value.errors
    assert fault.pointer == "/stages/0/disk"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"disk": "-1GiB"}, "must be a size"),
        ({"disk": "1000PiB"}, "must lie between"),
        ({"disk_bandwidth": "500"}, "must be a bandwidth"),
        ({"disk_bandwidth": 500}, "must be a bandwidth"),
        ({"network_bandwidth": "10Gb/s"}, "must be a bandwidth"),
        ({"network_bandwidth": "0MB/s"}, "must lie between 1 MB/s"),
        ({"network_bandwidth": "900000000TB/s"}, "must lie between 1 MB/s"),
    ],
)
def test_nonsense_is_refused_with_what_would_do(yard: Yard, given: dict[str, Any], says: str) -> None:
    big(yard)
    with pytest.raises(InvalidSpec, match=says):
        yard.submit(**given)


def test_bandwidth_is_declared_by_labels_or_told_by_the_interfaces(yard: Yard) -> None:
    agent = big(yard)
    with pytest.raises(InvalidSpec, match="1250 MB/s of network") as refused:
        yard.submit(disk_bandwidth="500MB/s", network_bandwidth="10Gbit/s")
    assert refused.value.errors[0].pointer == "/stages/0/disk_bandwidth"
    Node.objects.filter(id=agent.node.id).update(labels={"disk-mbps": "3000", "link-gbps": "100"})
    job = yard.submit(disk_bandwidth="500MB/s", network_bandwidth="10Gbit/s")
    request = stage(job).request
    assert (request["disk_mbps"], request["network_mbps"]) == (500, 1250)
    assert demand.asked(request).text == "1 core · 500 MB/s of disk · 1250 MB/s of network"
    yard.cycle()
    assert agent.start() == ["main"]
    part = Part.objects.get()
    assert (part.disk_mbps, part.network_mbps) == (500, 1250)
    node = Node.objects.get(id=agent.node.id)
    found = amounts.devices(str(node.id), node.labels, node.disk_bytes, node.disk_total_bytes, 0)
    assert [(one.kind, one.capacity_milli) for one in found] == [("disk", 3000), ("network", 12_500)]
    up = [Interface("eth0", 25 * 10**9, True), Interface("eth1", 100 * 10**9, False), Interface("eth2")]
    assert amounts.fastest_mbps(up) == 3125
    for absurd in ("nan", "inf", "-1", "1e99", "x"):
        (disk, *_) = amounts.devices("n", {"disk-mbps": absurd, "link-gbps": absurd}, GIB, GIB, 0)
        assert disk.capacity_milli == 0
        assert _ == []


def test_the_record_refuses_what_a_stale_plan_would_promise_twice(yard: Yard) -> None:
    agent = big(yard)
    yard.submit(disk="600GiB")
    yard.cycle()
    agent.start()
    more = Part(node=agent.node)
    node_amounts.give(more, [Grant(amount_id(str(agent.node.id), DISK), 0, 500 * GIB)])
    with pytest.raises(IntegrityError, match="disk_bytes"):
        node_amounts.check([more])
    node_amounts.give(more, [Grant(amount_id(str(agent.node.id), DISK), 0, 400 * GIB)])
    node_amounts.check([more])


def test_what_others_leave_of_a_disk_is_what_stages_may_ask_for(yard: Yard) -> None:
    agent = big(yard)
    now = Node.objects.get(id=agent.node.id)
    assert now.disk_bytes == TIB, "unmeasured it is the whole disk"
    seen = ((500 * GIB, 448 * GIB), (530 * GIB, 448 * GIB), (560 * GIB, 512 * GIB), (10 * GIB, 0), (TIB, TIB))
    for room, has in seen:
        hosts.store_sample(now, HostSample(disk_room_bytes=room), now.last_report_at)
        Host.objects.filter(node=now).update(weighed_at=None, at=None)
        assert loads.update_load(now)
        assert Node.objects.get(id=now.id).disk_bytes == has, room
