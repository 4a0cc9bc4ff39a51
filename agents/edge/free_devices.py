"""Chooses the devices of a local job: none that a part holds, or that an order of the control plane names. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agents.devices.card import USABLE
from agents.edge.job_file import LocalDemand
from agents.protocol import Device, DeviceClaim


def choose(
    demand: LocalDemand, devices: Iterable[Device], held: Iterable[DeviceClaim], unusable: Collection[str] = ()
) -> list[DeviceClaim] | None:
    """Return the claims of a job, None while they are not free.

    Accelerators are given whole. Its cores are all of one NUMA node: that of its first accelerator, if possible.
    """
    milli: dict[str, int] = {}
    memory: dict[str, int] = {}
    for claim in held:
        milli[claim.uuid] = milli.get(claim.uuid, 0) + claim.milli
        memory[claim.uuid] = memory.get(claim.uuid, 0) + claim.memory_bytes
    usable = sorted(
        (each for each in devices if each.health in USABLE and each.uuid not in unusable),
        key=lambda each: (each.kind, each.index),
    )
    cards = [each for each in usable if _suits(each, demand) and not milli.get(each.uuid)][: demand.count]
    if len(cards) < demand.count:
        return None
    near = cards[0].numa if cards else None
    hosts = [
        each
        for each in usable
        if each.kind == "cpu"
        and each.capacity_milli - milli.get(each.uuid, 0) >= demand.cpus_milli
        and each.memory_bytes - memory.get(each.uuid, 0) >= demand.memory_bytes
    ]
    if not hosts:
        return None
    host = min(hosts, key=lambda each: (each.numa != near, each.index))
    return [
        *(_claim(each, each.capacity_milli, 0) for each in cards),
        _claim(host, demand.cpus_milli, demand.memory_bytes),
    ]


def _suits(device: Device, demand: LocalDemand) -> bool:
    division = device.division
    if device.kind != demand.kind or (division is not None and (division.made or not division.whole)):
        return False
    return demand.model.casefold() in device.model.casefold() and (not demand.uuids or device.uuid in demand.uuids)


def _claim(device: Device, milli: int, memory_bytes: int) -> DeviceClaim:
    return DeviceClaim(
        uuid=device.uuid,
        kind=device.kind,
        vendor=device.vendor,
        model=device.model,
        index=device.index,
        milli=milli,
        memory_bytes=memory_bytes,
        simulated=device.simulated,
    )
