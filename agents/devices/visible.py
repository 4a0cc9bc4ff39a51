"""The variables that tell each vendor's runtime which devices a process may use, as the probes declare them."""

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

    ``uuid_prefix``: a device whose uuid begins otherwise is listed by index, because the runtime does not know its
    uuid. ``none`` is the value that hides every device, maybe by variable; None if the vendor documents no such value.
    ``within`` are variables that count only what the others leave: they list 0, 1, … of a claim. ``spares`` are another
    vendor's variables that this runtime reads too: they are not set to hide that vendor's devices from a claim here.
    ``along`` are variables that a claim sets, so that the others count as the agent does; ``shape`` returns those that
    depend on the number of claimed devices and of devices of the host.
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
        """Return the value that hides every device, for one variable."""
        return self.none.get(name) if isinstance(self.none, dict) else self.none

    def word(self, name: str, claim: DeviceClaim) -> str:
        """Return the value of one claim in one variable; a partition has a name of its own."""
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
    """Add a vendor without a probe in the folder, e.g. one of a command probe."""
    declared()[vendor] = visible


def name_device(uuid: str, words: dict[str, str]) -> None:
    """Set the name of a device in a variable that takes neither its uuid nor its index."""
    if words:
        _own_words[uuid] = words


def count_devices(vendor: str, count: int) -> None:
    """Set how many devices of a vendor this host has."""
    _counts[vendor] = count


def declared() -> dict[str, Visible]:
    """Return the declarations of the probes by vendor; a probe's module has ``VENDOR`` and ``VISIBLE``."""
    if not _declared:
        package = importlib.import_module("agents.devices.vendors")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
            probe = importlib.import_module(f"agents.devices.vendors.{module.name}")
            if hasattr(probe, "VISIBLE"):
                _declared[probe.VENDOR] = probe.VISIBLE
    return _declared


def variables(claims: list[DeviceClaim]) -> dict[str, str]:
    """Return the variables that limit every vendor's runtime to the claimed devices.

    Simulated devices are not passed to a runtime, and a vendor without a claim is hidden if it can be.
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
    # Some vendors' runtimes read another's variable: a claim takes precedence over hiding.
    return {**{name: word for name, word in hidden.items() if name not in spared}, **claimed}
