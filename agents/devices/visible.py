"""How each vendor's runtime is told which devices a process may use, as the probes declare it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agents.protocol import DeviceClaim


@dataclass(frozen=True, slots=True)
class Visible:
    """``names`` are the variables; ``by`` is what they list.

    ``uuid_prefix``: a device whose uuid does not begin so has none that the runtime knows, and is listed by index.
    ``none`` is what hides every device, or what does by variable; None where the vendor documents no such value.
    ``within`` are variables that count only what the others leave: they list 0, 1, … of a claim. ``spares`` are another
    vendor's variables that this runtime reads too: they are not set to hide that vendor's devices from a claim here.
    ``along`` are variables that a claim sets, so that the others mean what the agent counted; ``shape`` answers those
    that follow from how many devices are claimed, and how many the host has.
    """

    names: tuple[str, ...]
    by: Literal["uuid", "index"] = "index"
    uuid_prefix: str = ""
    none: str | dict[str, str] | None = None
    within: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    along: dict[str, str] = field(default_factory=dict)
    shape: Callable[[int, int], dict[str, str]] | None = None

    def nothing(self, name: str) -> str | None:
        """What hides every device in one variable."""
        return self.none.get(name) if isinstance(self.none, dict) else self.none

    def word(self, name: str, claim: DeviceClaim) -> str:
        """What stands for one claim in one variable; a partition has a name of its own."""
        if claim.partition is not None and claim.partition.uuid:
            return claim.partition.uuid
        known = _own_words.get(claim.uuid, {})
        if name in known:
            return known[name]
        return claim.uuid if self.by == "uuid" and claim.uuid.startswith(self.uuid_prefix) else str(claim.index)


_declared: dict[str, Visible] = {}
_own_words: dict[str, dict[str, str]] = {}
_counts: dict[str, int] = {}


def declare(vendor: str, visible: Visible) -> None:
    """Add a vendor that no probe of the folder knows, e.g. one of a command probe."""
    declared()[vendor] = visible


def name_device(uuid: str, words: dict[str, str]) -> None:
    """Note what a device is called in a variable that takes neither its uuid nor its index."""
    if words:
        _own_words[uuid] = words


def count_devices(vendor: str, count: int) -> None:
    """Note how many devices of a vendor this host has."""
    _counts[vendor] = count


def declared() -> dict[str, Visible]:
    """By vendor, what the probes declare; a probe's module has ``VENDOR`` and ``VISIBLE``."""
    if not _declared:
        package = importlib.import_module("agents.devices.vendors")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
            probe = importlib.import_module(f"agents.devices.vendors.{module.name}")
            if hasattr(probe, "VISIBLE"):
                _declared[probe.VENDOR] = probe.VISIBLE
    return _declared


def variables(claims: list[DeviceClaim]) -> dict[str, str]:
    """The variables that limit every vendor's runtime to the claimed devices.

    A simulated device is no device to a runtime, and a vendor without a claim is hidden where it can be.
    """
    hidden: dict[str, str] = {}
    claimed: dict[str, str] = {}
    spared: set[str] = set()
    for vendor, visible in declared().items():
        mine = [claim for claim in claims if claim.vendor == vendor and claim.kind != "cpu" and not claim.simulated]
        if mine:
            spared.update(visible.spares)
            claimed.update(dict.fromkeys(visible.within, ",".join(map(str, range(len(mine))))))
            claimed.update(visible.along)
            if visible.shape is not None:
                claimed.update(visible.shape(len(mine), _counts.get(vendor, 0)))
        for name in visible.names:
            if mine:
                claimed[name] = ",".join(visible.word(name, claim) for claim in mine)
            elif (nothing := visible.nothing(name)) is not None:
                hidden[name] = nothing
    # Some vendors' runtimes honour another's variable: what was claimed wins over what was hidden.
    return {**{name: word for name, word in hidden.items() if name not in spared}, **claimed}
