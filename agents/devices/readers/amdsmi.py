"""Reads AMD GPUs through ``libamd_smi``, else through the older ``librocm_smi64``. Only for a reader's process.

Signatures: amdsmi.h of ROCm 6.0 to 7.0 and rocm_smi.h. The structures of these libraries change with nearly every
release, so functions that return plain numbers are used. Of the few structures only the first fields, which are stable,
are read, from a buffer that is larger than any of them. Unreported values are None.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import c_char, c_float, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from agents.devices.readers.shared_object import (
    MOST_HANDLES,
    Absent,
    LibraryBroken,
    SharedObject,
    cards_or_why,
    finite,
    rate,
    text,
)

NAMES = ("libamd_smi.so", *(f"libamd_smi.so.{major}" for major in range(27, 22, -1)))
ELDER_NAMES = ("librocm_smi64.so", *(f"librocm_smi64.so.{major}" for major in (7, 6, 5, 1)))
FOLDERS = ("/opt/rocm/lib", "/opt/rocm/lib64")
_GPUS = 2  # AMDSMI_INIT_AMD_GPUS
_A_GPU = 1  # AMDSMI_PROCESSOR_TYPE_AMD_GPU
_VRAM, _NOW, _GFX_CLOCK = 0, 0, 0
_HOTSPOT, _EDGE = 1, 0
_MEMORY_BLOCK = 1  # RSMI_GPU_BLOCK_UMC
_NOT_TOLD = 2**64 - 1
_LARGE = 16384

Read = Callable[[], list[dict[str, Any]]]
_read: Read | None = None
_before: dict[int, tuple[int, int]] = {}


def answer(question: str) -> dict[str, Any]:
    """``look`` and ``sample`` both return all values of the cards."""
    return cards_or_why("AMD's management library", _cards)


def _cards() -> list[dict[str, Any]]:
    global _read
    if _read is None:
        _read = _start()
    return _read()


def _start() -> Read:
    """Return the function that reads cards here. Raises Absent or LibraryBroken, with the newer library's error if
    neither works."""
    why: Absent | LibraryBroken = Absent()
    try:
        return _newer()
    except (Absent, LibraryBroken) as error:
        why = error
    try:
        return _elder()
    except (Absent, LibraryBroken) as error:
        raise (error if isinstance(why, Absent) else why) from error


def _newer() -> Read:
    library = SharedObject(NAMES, FOLDERS)
    library.start("amdsmi_init", c_uint64(_GPUS))
    found = []
    for socket in library.handles("amdsmi_get_socket_handles"):
        for processor in library.handles("amdsmi_get_processor_handles", socket):
            kind = c_uint32()
            if library.call("amdsmi_get_processor_type", processor, ctypes.byref(kind)) and kind.value == _A_GPU:
                found.append(processor)
    return lambda: [_newer_card(library, index, gpu) for index, gpu in enumerate(found[:MOST_HANDLES])]


def _elder() -> Read:
    library = SharedObject(ELDER_NAMES, FOLDERS)
    library.start("rsmi_init", c_uint64(0))
    count = c_uint32()
    library.start("rsmi_num_monitor_devices", ctypes.byref(count))
    return lambda: [_elder_card(library, index) for index in range(min(count.value, MOST_HANDLES))]


def _number(library: SharedObject, name: str, *arguments: Any) -> int | None:
    """Return the result of a function with one 64-bit number."""
    told = c_uint64()
    if not library.call(name, *arguments, ctypes.byref(told)) or told.value == _NOT_TOLD:
        return None
    return int(told.value)


def _first(library: SharedObject, name: str, kind: type[Any], count: int, *arguments: Any) -> list[int] | None:
    """Return the first numbers of a structure, the only stable ones."""
    room = ctypes.create_string_buffer(_LARGE)
    if not library.call(name, *arguments, room):
        return None
    return [int(one) for one in (kind * count).from_buffer_copy(room, 0)]


def _words(library: SharedObject, name: str, *arguments: Any, size: type[Any] = c_uint32) -> str:
    """Return the text result of a function, its first line."""
    room = (c_char * 256)()
    return text(room.raw) if library.call(name, *arguments, room, size(256)) else ""


def _degrees(library: SharedObject, name: str, per_degree: int, card: Any) -> float | None:
    for sensor in (_HOTSPOT, _EDGE):
        told = c_int64()
        if library.call(name, card, c_uint32(sensor), c_uint32(_NOW), ctypes.byref(told)):
            return told.value / per_degree
    return None


def _energy(library: SharedObject, name: str, index: int, card: Any) -> dict[str, Any]:
    """Return the counter in joules, and the mean watts since the previous read."""
    count, step, at = c_uint64(), c_float(), c_uint64()
    if not library.call(name, card, ctypes.byref(count), ctypes.byref(step), ctypes.byref(at)):
        return {}
    if not count.value or count.value == _NOT_TOLD or not (finite(step.value) or 0.0) > 0:
        return {}
    microjoules = int(count.value * step.value)
    now = (microjoules, time.monotonic_ns() // 1000)
    before, _before[index] = _before.get(index), now
    # No card draws zero: a counter that does not grow does not work.
    return {"energy_j": microjoules / 1e6, "power_w": rate(before, now) or None}


def _place(told: int | None) -> str | None:
    """Return a PCI address from domain, bus, device and function in one number."""
    if told is None:
        return None
    return f"{told >> 32 & 0xFFFFFFFF:04x}:{told >> 8 & 0xFF:02x}:{told >> 3 & 0x1F:02x}.{told & 7}"


def _newer_card(library: SharedObject, index: int, gpu: c_void_p) -> dict[str, Any]:
    place = _number(library, "amdsmi_get_gpu_bdf_id", gpu)
    if place is None:
        return {"index": index, "error": f"amdsmi_get_gpu_bdf_id {library.answered}"}
    facts = ctypes.create_string_buffer(_LARGE)
    named = library.call("amdsmi_get_gpu_asic_info", gpu, facts)
    use = _first(library, "amdsmi_get_gpu_activity", c_uint32, 1, gpu)
    clock = _first(library, "amdsmi_get_clock_info", c_uint32, 1, gpu, c_uint32(_GFX_CLOCK))
    return {
        "index": index,
        "name": text(facts.raw[:256]) if named else "",
        "pci": _place(place),
        "memory_bytes": _number(library, "amdsmi_get_gpu_memory_total", gpu, c_uint32(_VRAM)),
        "memory_used_bytes": _number(library, "amdsmi_get_gpu_memory_usage", gpu, c_uint32(_VRAM)),
        "use_percent": use[0] if use else None,
        "temperature_c": _degrees(library, "amdsmi_get_temp_metric", 1, gpu),
        "clock_mhz": clock[0] if clock else None,
        "ecc": _first(library, "amdsmi_get_gpu_total_ecc_count", c_uint64, 2, gpu),
        "partition": _words(library, "amdsmi_get_gpu_compute_partition", gpu),
        "memory_partition": _words(library, "amdsmi_get_gpu_memory_partition", gpu),
        **_energy(library, "amdsmi_get_energy_count", index, gpu),
    }


def _elder_card(library: SharedObject, index: int) -> dict[str, Any]:
    card = c_uint32(index)
    place = _number(library, "rsmi_dev_pci_id_get", card)
    if place is None:
        return {"index": index, "error": f"rsmi_dev_pci_id_get {library.answered}"}
    use, watts = c_uint32(), None
    has_use = library.call("rsmi_dev_busy_percent_get", card, ctypes.byref(use))
    kind, microwatts = c_uint32(), c_uint64()
    if library.call("rsmi_dev_power_get", card, ctypes.byref(microwatts), ctypes.byref(kind)):
        watts = microwatts.value / 1e6
    elif (average := _number(library, "rsmi_dev_power_ave_get", card, c_uint32(0))) is not None:
        watts = average / 1e6
    told = {
        "index": index,
        "name": _words(library, "rsmi_dev_name_get", card, size=c_size_t),
        "pci": _place(place),
        "memory_bytes": _number(library, "rsmi_dev_memory_total_get", card, c_uint32(_VRAM)),
        "memory_used_bytes": _number(library, "rsmi_dev_memory_usage_get", card, c_uint32(_VRAM)),
        "use_percent": use.value if has_use else None,
        "temperature_c": _degrees(library, "rsmi_dev_temp_metric_get", 1000, card),
        "ecc": _first(library, "rsmi_dev_ecc_count_get", c_uint64, 2, card, c_uint32(_MEMORY_BLOCK)),
        "partition": _words(library, "rsmi_dev_compute_partition_get", card),
        "memory_partition": _words(library, "rsmi_dev_memory_partition_get", card),
        **_energy(library, "rsmi_dev_energy_count_get", index, card),
    }
    return {**told, "power_w": watts} if watts is not None else told
