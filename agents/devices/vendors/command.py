"""Devices of any kind from the JSON output of an administrator's command: no code, one entry of a file.

The file is TOML (see ``docs/how-to/any-device.md``); the command's output is :class:`Listing`, whose fields are checked
one by one: invalid ones are refused by name.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from agents.decode import BoundedDecoder, Undecodable
from agents.devices import visible
from agents.devices.card import Card, Condition, Process, UnreadableOutput
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.tool import Tool
from agents.devices.vendors import Probe, ProbedHost
from agents.devices.visible import Visible
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Name, Rate, Text

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=120)]
Uuid = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]
Kind = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,19}$")]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Using(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that uses a device, by its pid on the host."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    memory_bytes: Whole


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device and its present values. Omit what is unknown: 0 means that it is known to be zero.

    ``uuid`` never changes and is unique in the cluster. ``index`` counts the devices of one kind and vendor.
    ``processes`` are all that use it; memory shares on the device are then enforced by them. ``simulated`` marks it as
    such wherever it is shown. A DEGRADED device accepts work after others; an UNHEALTHY one accepts none.
    """

    uuid: Uuid
    kind: Kind
    vendor: Word
    model: Word
    index: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    memory_bytes: Whole = 0
    simulated: bool = False
    health: Literal["OK", "DEGRADED", "UNHEALTHY"] = "OK"
    health_reason: Annotated[str, msgspec.Meta(max_length=300)] = ""
    features: Annotated[dict[Name, Rate], msgspec.Meta(max_length=128)] = msgspec.field(default_factory=dict)
    attributes: Annotated[dict[Name, Text], msgspec.Meta(max_length=128)] = msgspec.field(default_factory=dict)
    utilisation: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    memory_used_bytes: Whole | None = None
    power_w: Amount | None = None
    energy_j: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None
    temperature_c: float | None = None
    clock_hz: Amount | None = None
    processes: Annotated[list[Using], msgspec.Meta(max_length=4096)] | None = None


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command's output: one JSON object, and nothing else."""

    devices: Annotated[list[Listed], msgspec.Meta(max_length=256)]


class VisibleDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variables that tell the vendor's runtime which devices a stage may use."""

    vendor: Word
    variables: Annotated[list[Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]*$")]], msgspec.Meta(min_length=1)]
    by: Literal["index", "uuid"] = "index"
    none: str | None = None


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One command: ``run`` is executed without a shell, every ``every_s`` seconds, and killed after ``timeout_s``."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    run: Annotated[list[Word], msgspec.Meta(min_length=1)]
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 5.0
    every_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 5.0
    visible: VisibleDevices | None = None


class Commands(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: any number of ``[[command]]``."""

    command: list[Command] = msgspec.field(default_factory=list)


_listings = BoundedDecoder[Listing](Listing)


def read_commands(path: Path) -> tuple[Command, ...]:
    """Read the commands of a file. Raises ValueError with a sentence that names the invalid field."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), Commands)
    except OSError as error:
        raise ValueError(f"the file of probes {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the file of probes {path} is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(f"the file of probes {path} is refused at {_field(error)}") from error
    names = [command.name for command in found.command]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'the file of probes {path} has two commands named "{twice[0]}"; give each its own name')
    return tuple(found.command)


def parse(text: str) -> list[Card]:
    """Parse the devices that a command printed. Raises UnreadableOutput with the invalid field."""
    try:
        listing = _listings.read(text)
    except Undecodable as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            raise UnreadableOutput(f"its output is refused at {_field(error.__cause__)}") from error
        raise UnreadableOutput(f"its output is no JSON: {error}") from error
    for name, places in (
        ("uuid", [device.uuid for device in listing.devices]),
        ("index", [(device.kind, device.vendor, device.index) for device in listing.devices]),
    ):
        at = next((at for at, place in enumerate(places) if place in places[:at]), None)
        if at is not None:
            raise UnreadableOutput(f"its output is refused at devices[{at}].{name}: another device has the same")
    for at, device in enumerate(listing.devices):
        if device.kind == "cpu":
            raise UnreadableOutput(f"its output is refused at devices[{at}].kind: the agent finds the CPU itself")
    return [_card(device) for device in listing.devices]


def _field(error: msgspec.ValidationError) -> str:
    """Return ``devices[0].index: expected `int`, got `str```, from the library's message."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
    message, place = (found[1], found[2]) if found else (str(error), "")
    return f"{place or 'its top'}: {message[:1].lower()}{message[1:]}"


def _card(device: Listed) -> Card:
    processes = device.processes
    ill = Condition("TOLD_BY_COMMAND", device.health, device.health_reason or NoteText(clause("CalledByCommand")))
    return Card(
        index=device.index,
        kind=device.kind,
        vendor=device.vendor,
        model=device.model,
        uuid=device.uuid,
        simulated=device.simulated,
        memory_bytes=device.memory_bytes,
        memory_used_bytes=device.memory_used_bytes,
        utilisation=device.utilisation,
        power_w=device.power_w,
        energy_j=device.energy_j,
        temperature_c=device.temperature_c,
        clock_hz=device.clock_hz,
        processes=None if processes is None else tuple(Process(one.pid, one.memory_bytes) for one in processes),
        tells_memory=processes is not None,
        conditions=(ill,) if device.health != "OK" else (),
        attributes=dict(device.attributes),
        features=dict(device.features),
    )


@dataclass(frozen=True, slots=True)
class CommandSource:
    """See :class:`agents.devices.cards.CardSource`: the command reports everything each time."""

    command: Command
    thorough: bool = True

    @property
    def name(self) -> str:
        return f'command "{self.command.name}"'

    @property
    def period_s(self) -> float:
        return self.command.every_s

    def present(self, host: ProbedHost) -> bool:
        return True

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        program, *arguments = self.command.run
        return parse(Tool(program, cwd=None).ask(tuple(arguments), min(deadline_s, self.command.timeout_s)))

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self.look(host, deadline_s)

    def close(self) -> None:
        """Nothing to release: each question is a process of its own."""


def probes(host: ProbedHost) -> dict[str, Probe]:
    """Return a probe per command of the host, by its name."""
    found: dict[str, Probe] = {}
    for command in host.commands:
        if command.visible is not None:
            shown = command.visible
            visible.declare(shown.vendor, Visible(tuple(shown.variables), shown.by, none=shown.none))
        deadline_s = command.timeout_s
        found[f"command-{command.name}"] = CardProbe(host, Maker("", ""), (CommandSource(command),), deadline_s)
    return found
