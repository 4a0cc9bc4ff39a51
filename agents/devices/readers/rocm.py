"""Parses the JSON of ``rocm-smi --json`` and of tools derived from it; its keys changed with nearly every release."""

from __future__ import annotations

import re
from typing import Any

from agents.decode import Undecodable, parse
from agents.devices.card import MIB, Card, UnreadableOutput, number, numeral, pci_address, positive, ratio, scaled
from agents.devices.readers.table import whole

_CARD = re.compile(r"card(\d+)")


def after_warnings(text: str) -> Any:
    """Parse the JSON of an answer; lines before it, such as warnings about an old driver, are skipped."""
    lines = whole(text).splitlines()
    begin = next((i for i, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")), None)
    if begin is None:
        raise UnreadableOutput("its answer holds no JSON")
    try:
        return parse("\n".join(lines[begin:]))
    except Undecodable as error:
        raise UnreadableOutput(f"its JSON breaks off or is broken after line {begin + 1}: {error}") from error


def cards(text: str) -> list[Card]:
    """Return every ``cardN`` of the answer; other keys, such as ``system``, are not cards."""
    content = after_warnings(text)
    if not isinstance(content, dict):
        raise UnreadableOutput("its JSON is no mapping of cards")
    found = []
    driver = _of(content.get("system") or {}, "driver version")
    for name, fields in content.items():
        match = _CARD.fullmatch(name)
        if match and isinstance(fields, dict):
            found.append(_card(numeral(match[1]), fields, driver))
    if not found:
        raise UnreadableOutput("its JSON names no card")
    return found


def _card(index: int, fields: dict[str, Any], driver: str) -> Card:
    told = {str(key).strip(" :").lower(): value for key, value in fields.items()}
    unique = re.fullmatch(r"0x([0-9a-f]{1,16})", _of(told, "unique id"), re.IGNORECASE)
    numa = positive(_of(told, "(topology) numa node"))
    return Card(
        index=index,
        model=_of(told, "card series", "device name", "card model"),
        # The runtime's spelling of the same number, for ROCR_VISIBLE_DEVICES.
        uuid=f"GPU-{numeral(unique[1], 16):016x}" if unique and numeral(unique[1], 16) else "",
        pci=pci_address(_of(told, "pci bus")),
        numa=int(numa) if numa is not None else None,
        memory_bytes=_memory(told, "total"),
        memory_used_bytes=_memory(told, "total used"),
        utilisation=ratio(_of(told, "gpu use (%)", "hcu use (%)", "dcu use (%)")),
        power_w=positive(_of(told, "average graphics package power (w)", "current socket graphics package power (w)")),
        temperature_c=number(
            _of(
                told,
                "temperature (sensor junction) (c)",
                "temperature (sensor edge) (c)",
                "temperature (sensor core) (c)",
            )
        ),
        clock_hz=_hertz(_of(told, "sclk clock speed")),
        attributes={
            name: value
            for name, value in {
                "driver": driver,
                "pcie": _of(told, "pcie clock level"),
                "arch": _of(told, "gfx version"),
            }.items()
            if value
        },
    )


def _of(fields: dict[str, Any], *names: str) -> str:
    """Return the first non-empty of these fields."""
    for name in names:
        for key, value in fields.items():
            if str(key).lower() == name and str(value).strip().upper() not in ("", "N/A", "NONE"):
                return str(value).strip()
    return ""


def _memory(told: dict[str, Any], which: str) -> int | None:
    word = _of(told, f"vram {which} memory (b)")
    if word:
        return scaled(word, 1)
    return scaled(_of(told, f"vram {which} memory (mib)"), MIB)


def _hertz(text: str) -> float | None:
    found = re.search(r"(\d+(?:\.\d+)?)\s*mhz", text, re.IGNORECASE)
    clock = number(found[1]) if found else None
    return clock * 1e6 if clock is not None else None
