"""A device that an agent quarantines takes nothing new, and is free again when the agent says so."""

from __future__ import annotations

from agents.protocol import QUARANTINED, Conditions, DeviceError
from controlplane.fleet.models import Device
from tests.record.yard import Yard, cpu, gpu, states


def held() -> Conditions:
    detail = "killed 1 min ago and still there: python (pid 4711, ada, 90 min old)"
    return Conditions(device_errors=[DeviceError("GPU-a-0", QUARANTINED, detail)])


def test_a_quarantined_device_waits_and_comes_back(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    agent.report(conditions=held())
    device = Device.objects.get(uuid="GPU-a-0")
    assert (device.health, "pid 4711, ada" in device.health_reason) == ("QUARANTINED", True)
    job = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    assert states(job)["main"] == "PENDING"
    agent.report()
    device.refresh_from_db()
    assert (device.health, device.health_reason) == ("OK", "")
    yard.cycle()
    assert states(job)["main"] == "STARTING"


def test_what_a_person_quarantined_stays(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    Device.objects.filter(uuid="GPU-a-0").update(health="QUARANTINED", health_reason="smells of smoke")
    agent.report(conditions=held())
    agent.report()
    assert Device.objects.get(uuid="GPU-a-0").health_reason == "smells of smoke"
