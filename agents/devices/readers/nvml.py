"""Reads NVIDIA's GPUs through ``pynvml``. Only for a reader's process: any call may hang for ever.

Reference: NVIDIA, "NVML API reference guide". Unreported values are None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_MOST_EVENTS = 256
# "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"; a device with part of an instance only is called "MIG 1c.3g.40gb".
_MIG_NAME = re.compile(r"MIG (\S+)$")
_PART_OF_INSTANCE = re.compile(r"\d+c\.")

_started = False
_events: Any = None


def answer(question: str) -> dict[str, Any]:
    """``look`` returns all about the cards, ``sample`` the values that change fast, ``sample all`` also those that
    change rarely. With ``once`` after it no handle of the driver is held afterwards, because a held handle blocks a
    reset.

    A card that fails is listed with its error. ``xids`` are the faults that the driver reported since the last
    question.
    """
    question, once, _ = question.partition(" once")
    try:
        import pynvml
    except ImportError:
        seen = os.path.exists("/dev/nvidia0")
        note = "an NVIDIA card is here, but pynvml is not installed: pip install nvidia-ml-py"
        return {"absent": True, "note": note if seen else ""}
    try:
        count = _start(pynvml, listens=not once)
        read = _look if question == "look" else partial(_sample, whole=question == "sample all")
        cards = [_card(pynvml, index, read, whole=question != "sample") for index in range(count)]
        if question == "look":
            _relate(pynvml, cards)
        told = {"cards": cards, "xids": list(_xids(pynvml))}
        if once:
            _release(pynvml)
        return told
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return {"absent": True, "note": ""}
        return {"broken": f"NVIDIA's driver answers: {error}"}


def _start(pynvml: Any, *, listens: bool) -> int:
    """Load the library and, if it ``listens``, subscribe to faults, once; return the number of cards."""
    global _started, _events
    if not _started:
        pynvml.nvmlInit()
        _started = True
    count = int(pynvml.nvmlDeviceGetCount())
    if _events is None and listens:
        _events = optional(pynvml, pynvml.nvmlEventSetCreate) or False
        for index in range(count if _events else 0):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, _events)
            except pynvml.NVMLError:
                continue  # an old card, a lost one, or a virtual one: it reports no faults
    return count


def _release(pynvml: Any) -> None:
    """Close every handle of the driver; the next question opens them again. Faults are not reported meanwhile."""
    global _started, _events
    if _events:
        optional(pynvml, lambda: pynvml.nvmlEventSetFree(_events))
    _events, _started = None, False
    pynvml.nvmlShutdown()


def _xids(pynvml: Any) -> Iterator[dict[str, Any]]:
    for _ in range(_MOST_EVENTS if _events else 0):
        try:
            event = pynvml.nvmlEventSetWait_v2(_events, 0)
            yield {"uuid": pynvml.nvmlDeviceGetUUID(event.device), "xid": int(event.eventData)}
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return


def _card(pynvml: Any, index: int, read: Callable[[Any, Any], dict[str, Any]], whole: bool) -> dict[str, Any]:
    """Read a card; ``mig`` is its partitioning, or None, if the ``whole`` was asked for."""
    card: dict[str, Any] = {"index": index}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        card["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        card.update(read(pynvml, handle))
        if whole:
            mode = optional(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle))
            card["mig_mode"] = None if mode is None else bool(mode[0])
            card.update(_state(pynvml, handle))
            card["mig"] = _mig(pynvml, handle, card) if card["mig_mode"] else None
    except pynvml.NVMLError as error:
        card["error"] = str(error)
        card["lost"] = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    return card


def _mig(pynvml: Any, handle: Any, card: dict[str, Any]) -> dict[str, Any]:
    """Return the instances of a card in MIG mode, and how many of each profile an empty one takes. Their processes and
    memory are added to the card's, which reports neither unless the caller is root."""
    made, split = [], 0
    processes = card.get("processes")
    used = None
    for part in instances(pynvml, handle):
        told = _sample(pynvml, part, whole=True)
        if told["processes"] is not None:
            processes = sorted({each[0]: each for each in [*(processes or []), *told["processes"]]}.values())
        if told["memory_used_bytes"] is not None:
            used = (used or 0) + told["memory_used_bytes"]
        profile = profile_of(pynvml, part)
        if not profile:
            split += 1
            continue
        place = placement(pynvml, handle, part)
        made.append(
            {
                "profile": profile,
                "uuid": pynvml.nvmlDeviceGetUUID(part),
                "start": None if place is None else int(place.start),
                "size": 1 if place is None else int(place.size),
            }
        )
    card["processes"] = processes
    if card.get("memory_used_bytes") is None:
        card["memory_used_bytes"] = used
    return {"made": made, "split": split, "profiles": dict(_profiles(pynvml, handle))}


def instances(pynvml: Any, handle: Any) -> Iterator[Any]:
    """Yield the MIG devices of a card."""
    for at in range(optional(pynvml, lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                raise  # otherwise no instance has this number


def profile_of(pynvml: Any, part: Any) -> str:
    """Return the profile of a MIG device; empty for one with part of an instance only."""
    named = _MIG_NAME.search(pynvml.nvmlDeviceGetName(part))
    return "" if named is None or _PART_OF_INSTANCE.match(named[1]) else str(named[1])


def placement(pynvml: Any, handle: Any, part: Any) -> Any:
    """Return the slots of the card that an instance covers; the driver reports them to root only."""

    def ask() -> Any:
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, pynvml.nvmlDeviceGetGpuInstanceId(part))
        return pynvml.nvmlGpuInstanceGetInfo(instance).placement

    return optional(pynvml, ask)


def _profiles(pynvml: Any, handle: Any) -> Iterator[tuple[str, int]]:
    """Yield the profiles that the driver offers for a card, by name, and how many of each an empty one can have."""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        found = optional(pynvml, partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number))
        if found is not None:
            yield found.name.removeprefix("MIG "), int(found.instanceCount)


def optional(pynvml: Any, call: Callable[[], Any]) -> Any:
    """Return the result of a call; None if this card or driver does not support it. A lost card still raises."""
    silent = (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    )
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in silent:
            return None
        raise


def _ask(pynvml: Any, handle: Any, name: str, *rest: Any) -> Any:
    """Return the result of a function of the library for a card (see ``optional``); None also if this release of
    ``pynvml`` has no such function."""
    function = getattr(pynvml, name, None)
    return None if function is None else optional(pynvml, lambda: function(handle, *rest))


def _memory(pynvml: Any, handle: Any) -> Any:
    """Return a card's memory, without counting as used what its driver keeps for itself (480 MiB of an idle H100).
    Drivers before 510 only know the older answer, which counts it."""
    memory = _ask(pynvml, handle, "nvmlDeviceGetMemoryInfo", getattr(pynvml, "nvmlMemory_v2", None))
    return memory if memory is not None else _ask(pynvml, handle, "nvmlDeviceGetMemoryInfo")


def _look(pynvml: Any, handle: Any) -> dict[str, Any]:
    ask = partial(_ask, pynvml, handle)
    pci = ask("nvmlDeviceGetPciInfo")
    memory = _memory(pynvml, handle)
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "memory_bytes": memory.total if memory is not None else None,
        "pci": pci.busId if pci is not None else None,
        "nvlinks": _nvlinks(pynvml, handle),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_generation_card": ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "driver": optional(pynvml, pynvml.nvmlSystemGetDriverVersion),
        **_sample(pynvml, handle, whole=True),
    }


def _state(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Read values that change rarely and cost a call each. A card in MIG mode reports them as a whole."""
    ask = partial(_ask, pynvml, handle)
    errors = partial(ask, "nvmlDeviceGetTotalEccErrors")
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "remap": ask("nvmlDeviceGetRemappedRows"),
        "retirement_pending": ask("nvmlDeviceGetRetiredPagesPendingStatus"),
        "ecc_corrected": errors(corrected, pynvml.NVML_VOLATILE_ECC),
        "ecc_uncorrected": errors(uncorrected, pynvml.NVML_VOLATILE_ECC),
        "ecc_uncorrected_ever": errors(uncorrected, pynvml.NVML_AGGREGATE_ECC),
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "persistence": ask("nvmlDeviceGetPersistenceMode"),
        "recovery": _recovery(pynvml, handle),
    }


def _recovery(pynvml: Any, handle: Any) -> int | None:
    """Return the number of the recovery action that the driver requests (drivers from 565 on)."""
    wanted = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = None if wanted is None else _ask(pynvml, handle, "nvmlDeviceGetFieldValues", [wanted])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal) if values[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else None


def _nvlinks(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Return the active NVLinks: the PCI address of the peer and the link's version."""
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            break
        if state:
            remote = optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            version = optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkVersion, handle, link))
            found.append({"remote": remote.busId if remote is not None else None, "version": version})
    return found


def _relate(pynvml: Any, cards: list[dict[str, Any]]) -> None:
    """Store for each pair of cards their distance on the PCIe tree."""
    whole = [card for card in cards if "error" not in card]
    for card in whole:
        card["near"] = {}
        for other in whole:
            if other is card:
                continue
            try:
                ends = [pynvml.nvmlDeviceGetHandleByIndex(each["index"]) for each in (card, other)]
                level = optional(pynvml, partial(pynvml.nvmlDeviceGetTopologyCommonAncestor, *ends))
            except pynvml.NVMLError:
                return
            if level is None:
                return
            card["near"][other["uuid"]] = level


def _sample(pynvml: Any, handle: Any, whole: bool = False) -> dict[str, Any]:
    ask = partial(_ask, pynvml, handle)
    rates = ask("nvmlDeviceGetUtilizationRates")
    memory = _memory(pynvml, handle)
    watts = ask("nvmlDeviceGetPowerUsage")
    millijoules = ask("nvmlDeviceGetTotalEnergyConsumption")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535 know the older name
    told = {
        "utilisation": rates.gpu / 100 if rates is not None else None,
        "memory_used_bytes": memory.used if memory is not None else None,
        "power_w": watts / 1000 if watts is not None else None,
        "energy_j": millijoules / 1000 if millijoules is not None else None,
        "temperature_c": ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        "clock_mhz": ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        "throttle": reasons,
    }
    if whole:
        running = ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if running is None:
            running = ask("nvmlDeviceGetComputeRunningProcesses_v2")  # drivers before 510
        told["processes"] = None if running is None else [[each.pid, each.usedGpuMemory] for each in running]
    return told
