"""Reads Intel's GPUs through Level Zero's system management (Sysman). Only for a reader's process: a call may hang.

Layouts: level-zero, zes_api.h and ze_api.h of version 1.12 (the structures used here are the same since 1.0).
Unreported values are None; watts and use are reported from the second read on, because they are differences.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char, c_double, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

from agents.devices.readers.shared_object import SharedObject, cards_or_why, finite, rate, text

NAMES = ("libze_loader.so.1",)
_GPU, _INTEGRATED = 1, 1
_ON_DEVICE = 1
_ALL_ENGINES, _COMPUTE_ENGINES = 0, 1
_GLOBAL_SENSOR, _GPU_SENSOR = 0, 1
_GPU_CLOCK = 0


class _Header(ctypes.Structure):
    """The header of every structure: its type, and a pointer to extensions, which is null."""

    _fields_ = [("stype", c_uint32), ("next", c_void_p)]


class _Core(_Header):
    _fields_ = [
        *((name, c_uint32) for name in ("type", "vendor", "device", "flags", "subdevice", "clock")),
        ("most_allocated", c_uint64),
        *((name, c_uint32) for name in ("contexts", "priority", "threads", "width", "units", "subslices", "slices")),
        ("resolution", c_uint64),
        *((name, c_uint32) for name in ("valid_bits", "kernel_valid_bits")),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    ]


class _Device(_Header):
    _fields_ = [
        ("core", _Core),
        ("subdevices", c_uint32),
        *((name, c_char * 64) for name in ("serial", "board", "brand", "model", "vendor", "driver")),
    ]


class _DeviceState(_Header):
    _fields_ = [("reset", c_uint32), ("repaired", c_uint32)]


class _Speed(ctypes.Structure):
    _fields_ = [("generation", c_int32), ("width", c_int32), ("bandwidth", c_int64)]


class _Pci(_Header):
    _fields_ = [
        *((name, c_uint32) for name in ("domain", "bus", "device", "function")),
        ("most", _Speed),
        *((name, c_uint8) for name in ("counts_bandwidth", "counts_packets", "counts_replays")),
    ]


class _PciState(_Header):
    _fields_ = [*((name, c_uint32) for name in ("status", "quality", "stability")), ("speed", _Speed)]


class _Memory(_Header):
    _fields_ = [
        *(("type", c_uint32), ("on_subdevice", c_uint8), ("subdevice", c_uint32), ("location", c_uint32)),
        *(("size", c_uint64), ("bus", c_int32), ("channels", c_int32)),
    ]


class _MemoryState(_Header):
    _fields_ = [("health", c_uint32), ("free", c_uint64), ("size", c_uint64)]


class _Engine(_Header):
    _fields_ = [("type", c_uint32), ("on_subdevice", c_uint8), ("subdevice", c_uint32)]


class _Sensor(_Header):
    _fields_ = [
        *(("type", c_uint32), ("on_subdevice", c_uint8), ("subdevice", c_uint32), ("most", c_double)),
        *((name, c_uint8) for name in ("critical", "threshold1", "threshold2")),
    ]


class _Clock(_Header):
    _fields_ = [
        *(("type", c_uint32), ("on_subdevice", c_uint8), ("subdevice", c_uint32), ("controlled", c_uint8)),
        *(("tells_throttling", c_uint8), ("least", c_double), ("most", c_double)),
    ]


class _ClockState(_Header):
    _fields_ = [
        *((name, c_double) for name in ("volts", "wanted", "tdp", "efficient", "actual")),
        ("throttle", c_uint32),
    ]


class _Counter(ctypes.Structure):
    """An energy in microjoules or an active time in microseconds, and the time of the reading in microseconds."""

    _fields_ = [("count", c_uint64), ("at", c_uint64)]


# zes_structure_type_t
_TYPES: dict[type[_Header], int] = {
    _Device: 0x1,
    _Pci: 0x2,
    _Engine: 0x5,
    _Clock: 0x9,
    _Memory: 0xB,
    _Sensor: 0x14,
    _DeviceState: 0x15,
    _PciState: 0x17,
    _ClockState: 0x1B,
    _MemoryState: 0x1E,
}

_library: SharedObject | None = None
_devices: list[c_void_p] = []
_before: dict[str, tuple[int, int]] = {}


def answer(question: str) -> dict[str, Any]:
    """``look`` and ``sample`` both return all values of the cards. Integrated graphics are left out."""
    return cards_or_why("Level Zero", _cards)


def _cards() -> list[dict[str, Any]]:
    library = _start()
    told = (_card(library, index, device) for index, device in enumerate(_devices))
    return [card for card in told if card is not None]


def _start() -> SharedObject:
    global _library
    if _library is None:
        # These would hide devices, or count tiles as devices.
        for name in ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"):
            os.environ.pop(name, None)
        library = SharedObject(NAMES)
        library.start("zesInit", c_uint32(0))
        for driver in library.handles("zesDriverGet"):
            _devices.extend(library.handles("zesDeviceGet", driver))
        _library = library
    return _library


def _get(library: SharedObject, name: str, handle: c_void_p, kind: type[_Header]) -> Any:
    """Return the structure that a function fills; None if it fails."""
    told = kind(stype=_TYPES[kind])
    return told if library.call(name, handle, ctypes.byref(told)) else None


def _card(library: SharedObject, index: int, device: c_void_p) -> dict[str, Any] | None:
    facts = _get(library, "zesDeviceGetProperties", device, _Device)
    if facts is None:
        return {"index": index, "error": f"zesDeviceGetProperties {library.answered}"}
    if facts.core.type != _GPU or facts.core.flags & _INTEGRATED:
        return None
    pci = _get(library, "zesDevicePciGetProperties", device, _Pci)
    link = _get(library, "zesDevicePciGetState", device, _PciState)
    state = _get(library, "zesDeviceGetState", device, _DeviceState)
    place = None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}"
    return {
        "index": index,
        "name": text(facts.core.name) or text(facts.model),
        "driver": text(facts.driver),
        "tiles": min(facts.subdevices, 64),
        "pci": place,
        "pcie": None if link is None else [link.speed.generation, link.speed.width],
        "pcie_max": None if pci is None else [pci.most.generation, pci.most.width],
        "reset": 0 if state is None else state.reset,
        **_memory(library, device),
        **_energy(library, device, index),
        **_clock(library, device),
        "utilisation": _utilisation(library, device, index),
        "temperature_c": _temperature(library, device),
    }


def _memory(library: SharedObject, device: c_void_p) -> dict[str, Any]:
    """Return all memory modules of the card together, and the worst of their healths."""
    size, used, health = 0, 0, 0
    for module in library.handles("zesDeviceEnumMemoryModules", device):
        facts = _get(library, "zesMemoryGetProperties", module, _Memory)
        state = _get(library, "zesMemoryGetState", module, _MemoryState)
        if facts is None or state is None or facts.location != _ON_DEVICE or state.free > state.size:
            continue
        size, used, health = size + state.size, used + state.size - state.free, max(health, state.health)
    return {"memory_bytes": size or None, "memory_used_bytes": used if size else None, "memory_health": health}


def _energy(library: SharedObject, device: c_void_p, index: int) -> dict[str, Any]:
    domain, told = c_void_p(), _Counter()
    if not library.call("zesDeviceGetCardPowerDomain", device, ctypes.byref(domain)) or not domain:
        return {}
    if not library.call("zesPowerGetEnergyCounter", domain, ctypes.byref(told)):
        return {}
    # Microjoules per microsecond are watts. No card draws zero: a counter that does not grow does not work.
    return {"power_w": _rate(f"{index} energy", told) or None, "energy_j": told.count / 1e6}


def _rate(name: str, told: _Counter) -> float | None:
    now = (int(told.count), int(told.at))
    before, _before[name] = _before.get(name), now
    return rate(before, now)


def _utilisation(library: SharedObject, device: c_void_p, index: int) -> float | None:
    """Return the share of time in which any engine works, the mean of all tiles; else of the compute engines alone."""
    groups = []
    for handle in library.handles("zesDeviceEnumEngineGroups", device):
        facts = _get(library, "zesEngineGetProperties", handle, _Engine)
        if facts is not None:
            groups.append((facts.type, handle))
    for wanted in (_ALL_ENGINES, _COMPUTE_ENGINES):
        rates = []
        for at, (kind, handle) in enumerate(groups):
            told = _Counter()
            if kind == wanted and library.call("zesEngineGetActivity", handle, ctypes.byref(told)):
                rates.append(_rate(f"{index} engine {at}", told))
        known = [one for one in rates if one is not None]
        if rates:
            return min(1.0, sum(known) / len(known)) if known else None
    return None


def _temperature(library: SharedObject, device: c_void_p) -> float | None:
    found: dict[int, list[float]] = {}
    for sensor in library.handles("zesDeviceEnumTemperatureSensors", device):
        facts, degrees = _get(library, "zesTemperatureGetProperties", sensor, _Sensor), c_double()
        if facts is None or not library.call("zesTemperatureGetState", sensor, ctypes.byref(degrees)):
            continue
        if (told := finite(degrees.value)) is not None:
            found.setdefault(facts.type, []).append(told)
    return next((max(found[kind]) for kind in (_GPU_SENSOR, _GLOBAL_SENSOR) if kind in found), None)


def _clock(library: SharedObject, device: c_void_p) -> dict[str, Any]:
    for domain in library.handles("zesDeviceEnumFrequencyDomains", device):
        facts = _get(library, "zesFrequencyGetProperties", domain, _Clock)
        state = _get(library, "zesFrequencyGetState", domain, _ClockState)
        if facts is not None and state is not None and facts.type == _GPU_CLOCK and finite(state.actual) is not None:
            # A negative clock is unknown.
            return {"clock_mhz": state.actual if state.actual >= 0 else None, "throttle": state.throttle}
    return {}
