"""Asks NVIDIA's management library through ``pynvml``. Only a reader's process does: any call may hang for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

_started = False


def answer(question: str) -> dict[str, Any]:
    """``look`` -> what the cards are, ``sample`` -> what they do. A card that fails is listed with its error."""
    try:
        import pynvml
    except ImportError:
        seen = os.path.exists("/dev/nvidia0")
        note = "an NVIDIA card is here, but pynvml is not installed: pip install nvidia-ml-py"
        return {"absent": True, "note": note if seen else ""}
    try:
        _start(pynvml)
        read = _look if question == "look" else _sample
        return {"cards": [_card(pynvml, index, read) for index in range(pynvml.nvmlDeviceGetCount())]}
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return {"absent": True, "note": ""}
        return {"broken": f"NVIDIA's driver answers: {error}"}


def _start(pynvml: Any) -> None:
    global _started
    if not _started:
        pynvml.nvmlInit()
        _started = True


def _card(pynvml: Any, index: int, read: Callable[[Any, Any], dict[str, Any]]) -> dict[str, Any]:
    card: dict[str, Any] = {"index": index}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        card["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        card.update(read(pynvml, handle))
    except pynvml.NVMLError as error:
        card["error"] = str(error)
        card["lost"] = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    return card


def _optional(pynvml: Any, call: Callable[[], Any]) -> Any:
    """What the call answers; None where this card or this driver does not tell. A lost card is no such case."""
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


def _look(pynvml: Any, handle: Any) -> dict[str, Any]:
    mig = _optional(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "pci": pynvml.nvmlDeviceGetPciInfo(handle).busId,
        "mig": bool(mig and mig[0]),
        "nvlinks": _nvlinks(pynvml, handle),
        "pcie_generation": _optional(pynvml, lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "pcie_width": _optional(pynvml, lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "driver": _optional(pynvml, pynvml.nvmlSystemGetDriverVersion),
    }


def _nvlinks(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    """The active NVLinks: the far end's PCI address and the link's version."""
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            break
        if state:
            remote = _optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            version = _optional(pynvml, partial(pynvml.nvmlDeviceGetNvLinkVersion, handle, link))
            found.append({"remote": remote.busId if remote is not None else None, "version": version})
    return found


def _sample(pynvml: Any, handle: Any) -> dict[str, Any]:
    rates = _optional(pynvml, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _optional(pynvml, lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    watts = _optional(pynvml, lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {
        "utilisation": rates.gpu / 100 if rates is not None else None,
        "memory_used_bytes": memory.used if memory is not None else None,
        "power_w": watts / 1000 if watts is not None else None,
        "temperature_c": _optional(pynvml, lambda: pynvml.nvmlDeviceGetTemperature(handle, sensor)),
    }
