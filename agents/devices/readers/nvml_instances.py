"""Creates and removes MIG instances through ``pynvml``. Only for a reader's process: any call may hang for ever.

Reference: NVIDIA, "NVML API reference guide", multi instance GPU management. All of it requires root.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from agents.devices.readers import nvml

_MOST_PLACEMENTS = 32


class InstanceRefused(Exception):
    """The instance cannot be created; the text is a clause with the reason."""


def answer(question: str) -> dict[str, Any]:
    """``make CARD PROFILE START [UUID ...]`` -> ``uuid`` and ``size`` of an instance of this profile that begins there.

    The UUIDs are of instances that may be removed if they are in the way; ``gone`` are those that were. ``error`` is a
    clause with the reason if there is none.
    """
    gone: list[str] = []
    try:
        import pynvml
    except ImportError:
        return {"error": "pynvml is not installed", "gone": gone}
    try:
        pynvml.nvmlInit()
        try:
            word, card, profile, start, *own = question.split()
            if word != "make":
                raise InstanceRefused(f"{word!r} is no question")
            handle = pynvml.nvmlDeviceGetHandleByUUID(card)
            return {**_make(pynvml, handle, profile, int(start), set(own), gone), "gone": gone}
        finally:
            # A held handle blocks a reset, and a change of the card's mode.
            pynvml.nvmlShutdown()
    except InstanceRefused as error:
        return {"error": str(error), "gone": gone}
    except pynvml.NVMLError as error:
        return {"error": f"NVIDIA's driver answers: {error}", "gone": gone}


def _make(pynvml: Any, handle: Any, profile: str, start: int, own: set[str], gone: list[str]) -> dict[str, Any]:
    facts = _profile(pynvml, handle, profile)
    place = _place(pynvml, handle, facts.id, start)
    if place is None:
        raise InstanceRefused(f"no {profile} can begin at slot {start}")
    # Blocking instances are listed again after each removal, because handles may not outlive it.
    while (part := _in_the_way(pynvml, handle, place)) is not None:
        uuid = pynvml.nvmlDeviceGetUUID(part)
        if uuid not in own:
            raise InstanceRefused(f"{uuid} is in the way, which this agent did not make")
        there = nvml.placement(pynvml, handle, part)
        if there.start == place.start and nvml.profile_of(pynvml, part) == profile:
            return {"uuid": uuid, "size": int(there.size)}
        _remove(pynvml, handle, part)
        gone.append(uuid)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, facts.id, ctypes.byref(place))
    try:
        _fill(pynvml, made, facts.sliceCount)
    except (InstanceRefused, pynvml.NVMLError):
        pynvml.nvmlGpuInstanceDestroy(made)
        raise
    number = pynvml.nvmlGpuInstanceGetInfo(made).id
    for part in nvml.instances(pynvml, handle):
        if pynvml.nvmlDeviceGetGpuInstanceId(part) == number:
            return {"uuid": pynvml.nvmlDeviceGetUUID(part), "size": int(place.size)}
    raise InstanceRefused("the driver does not list what it made")


def _in_the_way(pynvml: Any, handle: Any, place: Any) -> Any:
    """Return an instance that covers a slot of this placement."""
    for part in nvml.instances(pynvml, handle):
        there = nvml.placement(pynvml, handle, part)
        if there is None:
            raise InstanceRefused("where its instances lie is told to root only")
        if there.start < place.start + place.size and place.start < there.start + there.size:
            return part
    return None


def _profile(pynvml: Any, handle: Any, name: str) -> Any:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        ask = partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        found = nvml.optional(pynvml, ask)
        if found is not None and found.name.removeprefix("MIG ") == name:
            return found
    raise InstanceRefused(f"the driver offers no profile {name} for this card")


def _place(pynvml: Any, handle: Any, profile: int, start: int) -> Any:
    """Return the placement of this profile that begins at a slot; None if it cannot begin there."""
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
    count = ctypes.c_uint(_MOST_PLACEMENTS)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, ctypes.byref(count))
    return next((places[i] for i in range(count.value) if places[i].start == start), None)


def _fill(pynvml: Any, instance: Any, slices: int) -> None:
    """Assign all of an instance's compute to one compute instance, without which no process can use it."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        ask = partial(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, shared)
        found = nvml.optional(pynvml, ask)
        if found is not None and found.sliceCount == slices:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, found.id)
            return
    raise InstanceRefused("the driver offers no compute profile for all of it")


def _remove(pynvml: Any, handle: Any, part: Any) -> None:
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, pynvml.nvmlDeviceGetGpuInstanceId(part))
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, pynvml.nvmlDeviceGetComputeInstanceId(part))
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
