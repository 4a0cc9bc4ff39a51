"""Pilots that a program of the administrator starts, ends and lists, for whatever engine there is.

The program lies in the folder ``YARD_PROVIDER_PROGRAMS`` on the control plane's server; an operator names one of those
that are there. It is called with one word, ``up``, ``down`` or ``list``, reads JSON from its standard input, and prints
JSON; see docs/how-to/slurm-cluster.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from django.conf import settings
from msgspec import Meta

from controlplane.providers import programs, script, typed
from controlplane.providers.engine import LABEL, EngineFault, EngineRefused, ForeignPhase, ForeignPilot, PilotOrder

_Handle = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.:/@-]*\Z")]
MOST_S: Final = 60.0
# The exit code with which a program says that it surely has started nothing.
REFUSED: Final = 3


class StartedPilot(msgspec.Struct, frozen=True):
    """What ``up`` prints."""

    handle: _Handle


class ListedPilot(msgspec.Struct, frozen=True):
    """One entry of what ``list`` prints."""

    label: Annotated[str, Meta(max_length=100)]
    handle: _Handle
    phase: ForeignPhase
    ends_at: Annotated[float, Meta(ge=0, le=2**40)] | None = None


_started = msgspec.json.Decoder(StartedPilot).decode
_listed = msgspec.json.Decoder(Annotated[list[ListedPilot], Meta(max_length=10_000)]).decode


def _is_options(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= 50
        and all(typed.is_text(typed.NAME)(name) for name in value)
        and all(isinstance(each, str | int | float) and len(str(each)) <= 1_000 for each in value.values())
    )


SETTINGS: Final[Mapping[str, typed.Check]] = {
    **script.SETTINGS,
    "program": typed.is_text(typed.NAME),
    "options": _is_options,
    "most": typed.is_whole(1, 10_000),
}
NEEDED: Final = ("program",)
SHAPE: Final[Mapping[str, typed.Check]] = {"options": _is_options}


class ProgramEngine:
    """The engine behind one program."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def _call(self, word: str, body: Mapping[str, Any]) -> programs.Printed:
        folder = settings.PROVIDER_PROGRAMS
        file = Path(folder or "/nonexistent") / self.given["program"]
        if not folder or not os.access(file, os.X_OK):
            raise EngineFault("ProgramMissing", self.given["program"])
        told = {"options": self.given.get("options", {}), **body}
        return programs.run([str(file), word], given=msgspec.json.encode(told).decode(), most_s=MOST_S)

    def up(self, order: PilotOrder) -> str:
        body = {"label": order.label, "node": order.node, "shape": dict(order.shape), "hours": order.hours}
        body |= {"url": order.url, "token": order.token, "script": script.of(order, self.given)}
        printed = self._call("up", body)
        if printed.code != 0:
            raise (EngineRefused if printed.code == REFUSED else EngineFault)("ProgramSaid", printed.err)
        try:
            return _started(printed.out).handle
        except msgspec.DecodeError:
            raise EngineFault("AnswerUnreadable", "up") from None

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        if handles and (printed := self._call("down", {"handles": list(handles), "force": force})).code != 0:
            raise EngineFault("ProgramSaid", printed.err)

    def list(self, tag: str) -> list[ForeignPilot]:
        printed = self._call("list", {"prefix": f"yard-{tag}-"})
        if printed.code != 0:
            raise EngineFault("ProgramSaid", printed.err)
        try:
            found = _listed(printed.out)
        except msgspec.DecodeError:
            raise EngineFault("AnswerUnreadable", "list") from None
        if any(not LABEL.fullmatch(each.label) or not each.label.startswith(f"yard-{tag}-") for each in found):
            raise EngineFault("AnswerUnreadable", "list")
        return [ForeignPilot(each.label, each.handle, each.phase, each.ends_at) for each in found]

    def price(self, shape: Mapping[str, Any]) -> float:
        return float(shape.get("price", 0.0))

    def limits(self) -> int | None:
        most: int | None = self.given.get("most")
        return most


def engine(given: Mapping[str, Any]) -> ProgramEngine:
    return ProgramEngine(given)
