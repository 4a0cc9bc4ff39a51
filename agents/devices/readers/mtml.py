"""Reads Moore Threads' GPUs through MTML. Only for a reader's process: a call may hang.

Signatures: mtml.h of Moore Threads' management library. Of its PCI information only the address, its first field, is
read: the rest differs between releases. Unreported values are None.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_uint, c_ulonglong, c_void_p
from typing import Any

from agents.devices.readers.shared_object import MOST_HANDLES, SharedObject, cards_or_why, text

NAMES = ("libmtml.so", "libmtml.so.2", "libmtml.so.1")
FOLDERS = ("/usr/local/musa/lib", "/usr/lib/x86_64-linux-gnu/musa")
_LARGE = 4096

_library: SharedObject | None = None
_driver = ""
# For each card its own handle, and those of its graphics core and its memory.
_cards: list[tuple[c_void_p, c_void_p, c_void_p]] = []


def answer(question: str) -> dict[str, Any]:
    """``look`` and ``sample`` both return all values of the cards."""
    return cards_or_why("MTML", _read_cards)


def _read_cards() -> list[dict[str, Any]]:
    library = _start()
    return [_card(library, index, *handles) for index, handles in enumerate(_cards)]


def _start() -> SharedObject:
    global _library, _driver
    if _library is None:
        library, own, count = SharedObject(NAMES, FOLDERS), c_void_p(), c_uint()
        library.start("mtmlLibraryInit", ctypes.byref(own))
        library.start("mtmlLibraryCountDevice", own, ctypes.byref(count))
        system = c_void_p()
        if library.call("mtmlLibraryInitSystem", own, ctypes.byref(system)):
            _driver = _words(library, "mtmlSystemGetDriverVersion", system)
        for index in range(min(count.value, MOST_HANDLES)):
            card, core, memory = c_void_p(), c_void_p(), c_void_p()
            library.start("mtmlLibraryInitDeviceByIndex", own, c_uint(index), ctypes.byref(card))
            library.call("mtmlDeviceInitGpu", card, ctypes.byref(core))
            library.call("mtmlDeviceInitMemory", card, ctypes.byref(memory))
            _cards.append((card, core, memory))
        _library = library
    return _library


def _words(library: SharedObject, name: str, handle: c_void_p) -> str:
    room = (c_char * 256)()
    return text(room.raw) if library.call(name, handle, room, c_uint(256)) else ""


def _number(library: SharedObject, name: str, handle: c_void_p, kind: type[Any] = c_uint) -> int | None:
    told = kind()
    return int(told.value) if handle and library.call(name, handle, ctypes.byref(told)) else None


def _card(library: SharedObject, index: int, card: c_void_p, core: c_void_p, memory: c_void_p) -> dict[str, Any]:
    uuid = _words(library, "mtmlDeviceGetUUID", card)
    if not uuid:
        return {"index": index, "error": f"mtmlDeviceGetUUID {library.answered}"}
    place = ctypes.create_string_buffer(_LARGE)
    milliwatts = _number(library, "mtmlDeviceGetPowerUsage", card)
    return {
        "index": index,
        "uuid": uuid,
        "name": _words(library, "mtmlDeviceGetName", card),
        "driver": _driver,
        "pci": text(place.raw[:32]) if library.call("mtmlDeviceGetPciInfo", card, place) else None,
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "use_percent": _number(library, "mtmlGpuGetUtilization", core),
        "temperature_c": _number(library, "mtmlGpuGetTemperature", core),
        "clock_mhz": _number(library, "mtmlGpuGetClock", core),
        "memory_bytes": _number(library, "mtmlMemoryGetTotal", memory, c_ulonglong),
        "memory_used_bytes": _number(library, "mtmlMemoryGetUsed", memory, c_ulonglong),
    }
