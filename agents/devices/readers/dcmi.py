"""Reads Huawei's Ascend chips through DCMI. Only for a reader's process: a call may hang.

Layouts: dcmi_interface_api.h of the Ascend driver (2021; later versions append functions and keep these). Unreported
values are None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import c_char, c_int, c_ubyte, c_uint, c_ulong, c_ulonglong
from typing import Any

from agents.devices.readers.shared_object import SharedObject, cards_or_why, text

NAMES = ("libdcmi.so",)
FOLDERS = ("/usr/local/dcmi", "/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64")
_MOST_CARDS, _MOST_CHIPS, _MOST_PROCESSES = 64, 16, 1024
_CHIP = 0  # NPU_TYPE
_AI_CORE_USE, _AI_CORE_CLOCK = 2, 7
_DDR, _HBM = 0, 2
_LARGE = 4096


class _Chip(ctypes.Structure):
    _fields_ = [("type", c_char * 32), ("name", c_char * 32), ("version", c_char * 32), ("cores", c_uint)]


class _Place(ctypes.Structure):
    """dcmi_pcie_info_all"""

    _fields_ = [
        *((name, c_uint) for name in ("vendor_id", "subvendor_id", "device_id", "subdevice_id")),
        *(("domain", c_int), ("bus", c_uint), ("device", c_uint), ("function", c_uint), ("reserve", c_ubyte * 32)),
    ]


class _Hbm(ctypes.Structure):
    _fields_ = [
        *(("size", c_ulonglong), ("frequency", c_uint), ("used", c_ulonglong)),
        *(("temperature", c_int), ("bandwidth_use", c_uint)),
    ]


class _Memory(ctypes.Structure):
    """dcmi_get_memory_info_stru; sizes in MB, use in per cent."""

    _fields_ = [
        *(("size", c_ulonglong), ("available", c_ulonglong), ("frequency", c_uint)),
        *((name, c_ulong) for name in ("huge_size", "huge_total", "huge_free")),
        *(("use_percent", c_uint), ("reserve", c_ubyte * 60)),
    ]


class _Errors(ctypes.Structure):
    _fields_ = [
        ("enabled", c_int),
        *((name, c_uint) for name in ("single", "double", "ever_single", "ever_double", "isolated", "isolated_double")),
    ]


class _Process(ctypes.Structure):
    _fields_ = [("pid", c_int), ("memory_bytes", c_ulong)]


_library: SharedObject | None = None
_places: list[tuple[int, int]] = []


def answer(question: str) -> dict[str, Any]:
    """``look`` and ``sample`` both return all values of the chips."""
    return cards_or_why("DCMI", _cards)


def _cards() -> list[dict[str, Any]]:
    library = _start()
    return [_card(library, *place) for place in _places]


def _start() -> SharedObject:
    global _library
    if _library is None:
        library = SharedObject(NAMES, FOLDERS)
        library.start("dcmi_init")
        _places.extend(_chips(library))
        _library = library
    return _library


def _chips(library: SharedObject) -> Iterator[tuple[int, int]]:
    """Yield card and chip numbers of everything that is a chip: a board lists its controller too."""
    count, cards = c_int(), (c_int * _MOST_CARDS)()
    library.start("dcmi_get_card_list", ctypes.byref(count), cards, c_int(_MOST_CARDS))
    for card in cards[: max(0, min(count.value, _MOST_CARDS))]:
        chips, kind = c_int(), c_uint()
        if not library.call("dcmi_get_device_num_in_card", c_int(card), ctypes.byref(chips)):
            continue
        for chip in range(max(0, min(chips.value, _MOST_CHIPS))):
            asked = library.call("dcmi_get_device_type", c_int(card), c_int(chip), ctypes.byref(kind))
            if asked and kind.value == _CHIP:
                yield card, chip


def _whole(library: SharedObject, name: str, kind: type[Any], *arguments: Any) -> int | None:
    """Return the result of a function with one number."""
    told = kind()
    return int(told.value) if library.call(name, *arguments, ctypes.byref(told)) else None


def _filled(library: SharedObject, name: str, kind: type[Any], *arguments: Any) -> Any:
    """Return the structure that a function fills, read from a larger buffer, because a newer driver may append to
    it."""
    room = ctypes.create_string_buffer(_LARGE)
    return kind.from_buffer_copy(room, 0) if library.call(name, *arguments, room) else None


def _card(library: SharedObject, card: int, chip: int) -> dict[str, Any]:
    where = (c_int(card), c_int(chip))
    index = c_int()
    told: dict[str, Any] = {"card": card, "chip": chip}
    if not library.call("dcmi_get_device_logic_id", ctypes.byref(index), *where):
        return {**told, "index": _places.index((card, chip)), "error": f"dcmi_get_device_logic_id {library.answered}"}
    facts = _filled(library, "dcmi_get_device_chip_info", _Chip, *where)
    place = _filled(library, "dcmi_get_device_pcie_info_v2", _Place, *where)
    version = (c_char * 256)()
    has_version = library.call("dcmi_get_driver_version", version, c_uint(256))
    # In tenths of a watt.
    power = _whole(library, "dcmi_get_device_power_info", c_int, *where)
    pci = (
        None if place is None else f"{place.domain & 0xFFFF:04x}:{place.bus:02x}:{place.device:02x}.{place.function:x}"
    )
    return {
        **told,
        "index": index.value,
        "name": "" if facts is None else text(facts.name),
        "driver": text(version.raw) if has_version else "",
        "pci": pci,
        "health": _whole(library, "dcmi_get_device_health", c_uint, *where),
        "power_w": None if power is None else power / 10,
        "temperature_c": _whole(library, "dcmi_get_device_temperature", c_int, *where),
        "use_percent": _whole(library, "dcmi_get_device_utilization_rate", c_uint, *where, c_int(_AI_CORE_USE)),
        "clock_mhz": _whole(library, "dcmi_get_device_frequency", c_uint, *where, c_int(_AI_CORE_CLOCK)),
        "processes": _processes(library, where),
        **_memory(library, where),
    }


def _memory(library: SharedObject, where: tuple[c_int, c_int]) -> dict[str, Any]:
    """Return size and use of the HBM, else of the chip's DDR, and its errors."""
    hbm = _filled(library, "dcmi_get_device_hbm_info", _Hbm, *where)
    has_hbm = hbm is not None and hbm.size > 0
    errors = _filled(library, "dcmi_get_device_ecc_info", _Errors, *where, c_int(_HBM if has_hbm else _DDR))
    told = {"ecc": [errors.single, errors.double] if errors is not None and errors.enabled else None}
    if has_hbm:
        unit = _unit(hbm.size)
        return {**told, "memory_bytes": hbm.size * unit, "memory_used_bytes": min(hbm.used, hbm.size) * unit}
    ddr = _filled(library, "dcmi_get_device_memory_info_v3", _Memory, *where)
    if ddr is None or not ddr.size or ddr.use_percent > 100:
        return told
    size = ddr.size * _unit(ddr.size)
    return {**told, "memory_bytes": size, "memory_used_bytes": size * ddr.use_percent // 100}


def _unit(size: int) -> int:
    """Return the unit of a size in bytes. The reference says MB, older drivers used KB; no chip has a size that fits
    both."""
    return 1 << 20 if size < 1 << 21 else 1 << 10 if size < 1 << 32 else 1


def _processes(library: SharedObject, where: tuple[c_int, c_int]) -> list[list[int]] | None:
    count, found = c_int(), (_Process * _MOST_PROCESSES)()
    if not library.call("dcmi_get_device_resource_info", *where, found, ctypes.byref(count)):
        return None
    used = found[: max(0, min(count.value, _MOST_PROCESSES))]
    return [[one.pid, one.memory_bytes] for one in used if one.pid > 0]
