"""Devices of any kind, as they are told: what the control plane has never heard of is placed, counted and preferred."""

from __future__ import annotations

import msgspec

from agents import protocol
from controlplane.fleet.models import Device
from controlplane.pools.models import Quota
from tests.record.yard import Yard, cpu, stage


def annealer(index: int, health: str = "OK") -> protocol.Device:
    device = protocol.Device(
        uuid=f"annealer-{index}", kind="qpu", vendor="example", model="Annealer", index=index, memory_bytes=0
    )
    return msgspec.structs.replace(device, health=health, health_reason="" if health == "OK" else "it warns")


ASK = {"devices": {"kind": "qpu", "count": 1}, "cpus": 0.1, "memory": "64MiB"}


def test_a_kind_that_nobody_has_heard_of_is_placed_and_counted(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), annealer(0))
    first, second = yard.submit(**ASK), yard.submit(**ASK)
    yard.cycle()
    assert agent.start() == ["main"]
    assert stage(second).reasons[0]["code"] == "CapacityInsufficient"
    claimed = Device.objects.get(uuid="annealer-0")
    assert (claimed.claimed_milli, claimed.kind) == (1000, "qpu")
    agent.end(stage(first))
    yard.cycle()
    assert agent.start() == ["main"]


def test_a_quota_holds_for_such_a_kind(yard: Yard) -> None:
    Quota.objects.create(project=yard.project, kind="qpu", nominal=1, borrowing_limit=0)
    agent = yard.agent("a", cpu("a"), annealer(0), annealer(1))
    yard.submit(**ASK)
    second = yard.submit(**ASK)
    yard.cycle()
    assert agent.start() == ["main"]
    reason = stage(second).reasons[0]
    assert reason["code"] == "QuotaExhausted"
    assert "qpu" in str(reason)


def test_of_two_devices_the_one_that_warns_is_taken_last(yard: Yard) -> None:
    yard.agent("a", cpu("a"), annealer(0, "DEGRADED"), annealer(1))
    yard.submit(**ASK)
    yard.cycle()
    assert list(Device.objects.filter(kind="qpu", claimed_milli=1000).values_list("index", flat=True)) == [1]
