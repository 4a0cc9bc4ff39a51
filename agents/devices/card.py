"""One accelerator as a vendor's tool or library reports it, in SI units; what it does not report is None, never 0."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final, Literal

from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Division, Link

Health = Literal["OK", "DEGRADED", "UNHEALTHY", "LOST"]
# Stages may run on devices in these.
USABLE: Final = ("OK", "DEGRADED")
WORSE: dict[Health, int] = {"OK": 0, "DEGRADED": 1, "UNHEALTHY": 2, "LOST": 3}
MIB = 1 << 20
GIB = 1 << 30
MOST_DIGITS = 18

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


class UnreadableOutput(ValueError):
    """The output of a tool is not in the format that its parser knows; the text tells what was missing."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A fault or limitation of a device: a code for programs, a note for people, and the resulting health.

    A DEGRADED device accepts work but ranks after healthy ones; an UNHEALTHY or LOST one accepts none.
    """

    code: str
    health: Health
    note: str


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses the card, as reported by the driver."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """``index`` is the number of the card in the vendor's runtime. A sample may have fewer fields than a look.

    ``visible_as`` names the card in a variable of the vendor's runtime that takes neither uuid nor index. ``processes``
    is None if not reported, and empty if there are none; ``tells_memory`` says that they include the memory that each
    uses. ``division`` is how it is partitioned, if it can be. ``energy_j`` is the hardware's energy counter, from an
    arbitrary start. ``kind``, ``vendor``, ``features`` and ``simulated`` are set only by sources with cards of several
    kinds; else they follow from the vendor and the model. The peers of ``links`` are named by uuid, by PCI address, or
    by their number after a ``#``.
    """

    index: int
    model: str = ""
    uuid: str = ""
    pci: str | None = None
    numa: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    clock_hz: float | None = None
    throttled: str = ""
    conditions: tuple[Condition, ...] = ()
    processes: tuple[Process, ...] | None = None
    tells_memory: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    visible_as: dict[str, str] = field(default_factory=dict)
    division: Division | None = None
    kind: str = ""
    vendor: str = ""
    features: dict[str, float] = field(default_factory=dict)
    simulated: bool = False


def number(value: object) -> float | None:
    """Return the first number of a text such as ``86.3 W``; None for ``N/A``, for an empty text and for non-finite
    numbers."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    found = _NUMBER.search(str(value)[:200])
    return float(found[0]) if found else None


def numeral(text: object, base: int = 10) -> int:
    """Parse the digits of a whole number. Raises UnreadableOutput for anything else, or a number longer than any tool
    prints."""
    told = str(text)
    try:
        if len(told) <= MOST_DIGITS:
            return int(told, base)
    except ValueError:
        pass
    raise UnreadableOutput(f"its answer has {told[:40]!a} where a number belongs")


def positive(value: object) -> float | None:
    """Like :func:`number`, but a negative value is unknown for quantities that cannot be negative."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def ratio(percent: object) -> float | None:
    """Return 0 to 1 from per cent. Tools round, so a value slightly over 100 is 1; a larger one is unknown."""
    found = positive(percent)
    return None if found is None or found > 105 else round(min(found / 100, 1.0), 4)


def scaled(value: object, unit_bytes: int) -> int | None:
    """Return bytes from a number of units; None if not reported or larger than any memory."""
    found = positive(value)
    return None if found is None or found * unit_bytes > 1 << 50 else int(found * unit_bytes)


def pci_address(text: object) -> str | None:
    """Return ``0000:39:00.0`` in lower case, however a tool writes it; None if the text has no address."""
    found = _PCI.search(str(text))
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{numeral(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()


def narrow_link(width: int | None, widest: int | None) -> tuple[Condition, ...]:
    """Return the condition of a card whose PCIe link uses fewer lanes than card and slot have.

    Only the width counts: the generation of an idle link drops to save power.
    """
    if not width or not widest or width >= widest:
        return ()
    return (Condition("PCIE_WIDTH", "DEGRADED", NoteText(clause("PcieWidth", lanes=width, most=widest))),)


def slow_link(generation: int | None, highest: int | None) -> tuple[Condition, ...]:
    """Return the condition of a card whose PCIe link stays below the generation of card and slot although it is
    busy."""
    if not generation or not highest or generation >= highest:
        return ()
    note = NoteText(clause("PcieGeneration", generation=generation, most=highest))
    return (Condition("PCIE_GENERATION", "DEGRADED", note),)


def memory_errors(corrected: object, uncorrected: object) -> tuple[dict[str, str], tuple[Condition, ...]]:
    """Return the counters of memory errors as attributes, and a condition if some could not be corrected."""
    counts = [positive(corrected), positive(uncorrected)]
    # A counter with all bits set is not supported.
    known = [int(one) if one is not None and one < 1 << 32 else None for one in counts]
    told = [f"{name} {one}" for name, one in zip(("corrected", "uncorrected"), known, strict=True) if one is not None]
    attributes = {"ecc_errors": ", ".join(told)} if told else {}
    if not known[1]:
        return attributes, ()
    note = NoteText(clause("EccUncorrected", count=known[1]))
    return attributes, (Condition("ECC_UNCORRECTED", "DEGRADED", note),)
