"""What agents tell of links and of how busy they are: groups, coarse means, and what cannot be."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
from django.db.models import F
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import DeviceSample, Fetched, HostSample, Inventory, InventoryRef, Link, Report, TelemetryBatch
from controlplane.dispatch import report_decoder
from controlplane.fleet import links, loads, world
from controlplane.fleet.models import Alarm, Device, Host
from tests.record.test_uploads import post
from tests.record.yard import Agent, Yard, cpu, gpu

SORTS = st.sampled_from(["NVLINK", "HCCS", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE"])


def linked(*devices: Any, sort: str = "NVLINK", gbps: float | None = 900.0) -> list[Any]:
    """These devices, each with a link to every other."""
    return [
        msgspec.structs.replace(one, links=[Link(other.uuid, sort, gbps) for other in devices if other is not one])
        for one in devices
    ]


def seen(name: str) -> dict[str, Any]:
    """The devices of a node as the engine sees them, by kind and index."""
    (node,) = (node for node in world.nodes() if node.name == name)
    return {f"{device.kind}{device.index}": device for device in node.devices}


def test_devices_that_links_join_are_one_group_for_the_engine(yard: Yard) -> None:
    four = [gpu("a", i) for i in range(4)]
    agent = yard.agent("a", cpu("a"), *linked(*four[:2]), *linked(*four[2:]))
    assert [seen("a")[f"gpu{i}"].group for i in range(4)] == [0, 0, 1, 1]
    assert seen("a")["cpu0"].group is None
    agent.devices = [cpu("a"), *linked(*four, sort="SYS", gbps=None)]
    agent.report()
    assert {device.group for device in seen("a").values()} == {None}


def test_links_that_cannot_be_are_said_and_the_last_good_ones_stay(yard: Yard) -> None:
    two = linked(gpu("a", 0), gpu("a", 1))
    agent = yard.agent("a", cpu("a"), *two)
    for link, says in (
        (Link("GPU-a-1", "NVLINK", 2e8), "device gpu-0 links[GPU-a-1] gbps is 2e+08; at most 20000"),
        (
            Link("GPU-a-0", "NVLINK", 9.0),
            "device gpu-0 has a link to itself; a link ends at another device, a switch or the host",
        ),
    ):
        agent.devices = [cpu("a"), msgspec.structs.replace(two[0], links=[link]), two[1]]
        agent.report()
        assert Device.objects.get(uuid="GPU-a-0").links == [{"peer": "GPU-a-1", "type": "NVLINK", "gbps": 900.0}]
        assert seen("a")["gpu0"].group == seen("a")["gpu1"].group == 0
        assert (
            report_decoder.report(msgspec.json.encode(telling(agent)))[2].text
            == f"inventory: {says}; its links stay as they were"
        )


def telling(agent: Agent) -> Report:
    """A report with the inventory of this agent."""
    full = Inventory("a", "Linux", "x86_64", 2, 1, "none", "nobody", devices=agent.devices)
    return Report(1, "1", "boot", 1, 1, 0, InventoryRef("h", full))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), SORTS), max_size=20))
def test_a_group_is_what_fast_links_connect(told: list[tuple[int, int, str]]) -> None:
    """Peers 8 and 9 are switches. Told a second time, by reachability."""
    ends = [(f"g{a}", f"g{b}", sort) for a, b, sort in told if a != b]
    found = links.groups(
        (name, [{"peer": b, "type": sort} for a, b, sort in ends if a == name]) for name in (f"g{i}" for i in range(8))
    )

    def reach(name: str, sorts: set[str], among: set[str]) -> set[str]:
        here = {name}
        while more := {
            far
            for a, b, sort in ends
            for near, far in ((a, b), (b, a))
            if sort in sorts and a in among and near in here and far not in here
        }:
            here |= more
        return here & among

    everybody = {f"g{i}" for i in range(8)}
    fast = {name: reach(name, {"NVLINK", "HCCS"}, everybody) for name in everybody}
    rest = {name for name in everybody if len(fast[name]) == 1}
    for name in everybody:
        together = fast[name] if name not in rest else reach(name, {"PIX", "PXB"}, rest)
        same = {other for other, number in found.items() if number == found.get(name)}
        assert (same if name in found else {name}) == together
    assert sorted(set(found.values())) == list(range(len(set(found.values()))))
    assert 1 not in Counter(found.values()).values()


def told(client: Client, agent: Agent, *busy: float | None, host: HostSample | None = None) -> None:
    """Measurements of its GPU, one a second until now, and one of its host."""
    Host.objects.filter(node=agent.node).update(weighed_at=None, at=F("at") - timedelta(seconds=600))
    samples = [DeviceSample("GPU-a-0", float(age), one) for age, one in enumerate(reversed(busy))]
    assert post(client, agent, "/agent/v1/telemetry", TelemetryBatch(samples, [], host)).status_code == 204


def test_how_busy_it_is_comes_to_the_engine_in_steps(client: Client, yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    assert (seen("a")["gpu0"].busy, world.nodes()[0].load) == (None, 0.0)
    told(client, agent, *([0.9] * 30), host=HostSample(queue=1.6, pressure={"io_full": 12.0}))
    assert (seen("a")["gpu0"].busy, world.nodes()[0].load) == (0.875, 1.625)
    assert seen("a")["cpu0"].busy is None
    told(client, agent, host=HostSample(queue=0.1, pressure={"io_full": 50.0}))
    assert world.nodes()[0].load == 0.5, "the scarcest of cores, disks and memory decides"


def test_it_is_looked_at_every_fifteen_seconds_however_often_it_is_told(client: Client, yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    assert loads.update_load(agent.node)
    assert not loads.update_load(agent.node)
    told(client, agent, 1.0)
    assert seen("a")["gpu0"].busy == 1.0


def test_a_utilisation_that_cannot_be_is_left_out_and_said_until_it_is_over(client: Client, yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    told(client, agent, 0.5, 0.5)
    for absurd, says in ((37.0, "37; at most 1"), (-0.5, "-0.5; at least 0")):
        told(client, agent, absurd)
        assert seen("a")["gpu0"].busy == 0.5, "the last good one"
        assert Alarm.objects.get(kind="measurement").says == f"measurement: device gpu-0 utilisation is {says}"
    told(client, agent, 1.02)
    assert not Alarm.objects.filter(kind="measurement").exists()


def test_how_fast_inputs_came_is_the_bandwidth_of_the_node(client: Client, yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"))

    def bandwidth(*fetched: Fetched) -> float | None:
        Host.objects.filter(node=agent.node).update(weighed_at=None)
        assert post(client, agent, "/agent/v1/telemetry", TelemetryBatch([], [], None, [*fetched])).status_code == 204
        return world.nodes()[0].fetch_gbps

    assert bandwidth() is None
    assert bandwidth(Fetched(10**10, 10.0)) == 8.0
    assert bandwidth(Fetched(10**9, 0.9)) == 8.0, "it wavers"
    assert bandwidth(Fetched(1 << 50, 1.0), Fetched(10**9, 0.0), Fetched(10**9, -1.0)) == 8.0, "that cannot be"
    assert Alarm.objects.get(kind="measurement").says.startswith(f"measurement: fetched is {1 << 50} bytes in 1 s")
    assert bandwidth(*[Fetched(10**10, 1.0)] * 9) == 2**6.5
    assert not Alarm.objects.filter(kind="measurement").exists()


@given(st.integers(0, 64), st.floats(0, 1), st.lists(st.floats(-0.99, 0.99), min_size=1, max_size=20))
def test_a_mean_that_wavers_by_less_than_a_quarter_of_a_step_is_no_news(
    steps: int, part: float, offsets: list[float]
) -> None:
    mean = (steps + part) * loads.STEP
    value = loads.settled(None, mean)
    assert abs(value - mean) <= loads.STEP / 2
    for offset in offsets:
        assert loads.settled(value, mean + offset * loads.STEP / 4) == value


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e4))
def test_a_decayed_mean_lies_between_and_forgets_in_time(before: float, value: float, span_s: float) -> None:
    mean = loads.decayed(before, value, span_s)
    assert min(before, value) - 1e-12 <= mean <= max(before, value) + 1e-12
    assert math.isclose(loads.decayed(0.0, 1.0, 20.0), 0.5)
