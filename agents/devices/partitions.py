"""Checks that the partitions of a stage exist when it starts: the device may have been partitioned anew."""

from __future__ import annotations

from agents.protocol import Device, DeviceClaim, Inventory, PartSpec

# Not usable by a process on the host: the Ascend docker runtime passes a vNPU to a container.
CONTAINER_ONLY = "vNPU"


def missing(spec: PartSpec, inventory: Inventory | None) -> str:
    """Return a sentence about the first partition that cannot be used here; empty if all can."""
    devices = {device.uuid: device for device in inventory.devices} if inventory else {}
    for claim in spec.devices:
        why = _missing(claim, devices.get(claim.uuid), in_container=bool(spec.image))
        if why:
            return why
    return ""


def _missing(claim: DeviceClaim, device: Device | None, *, in_container: bool) -> str:
    wanted = claim.partition
    if wanted is None:
        return ""
    division = device.division if device else None
    where = f"{claim.kind} {claim.index}"
    name = wanted.profile if wanted.start is None else f"{wanted.profile} at slot {wanted.start}"
    if division is None:
        return f"{where} is not divided any more, so it has no {name}"
    if not wanted.uuid:
        return "" if division.makes else f"{where} has no {name}, and this agent makes none: its operator has to"
    if all(one.uuid != wanted.uuid for one in division.made):
        return f"{where} was divided anew: {name} ({wanted.uuid}) is gone"
    if division.mode == CONTAINER_ONLY and not in_container:
        return f"{name} of {where} is a vNPU, which only a container can use: give the stage an image"
    return ""
