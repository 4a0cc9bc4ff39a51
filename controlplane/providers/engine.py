"""What a kind of provider does: it starts pilots in a foreign engine, ends them, and lists those that are there.

A *pilot* is one allocation of the foreign engine that runs this cluster's agent. Its *label* is unique for ever and is
written down before the pilot is asked for; the engine must be able to find it by that label. So after a crash at any
point, ``list`` tells which pilots there are, and none is asked for twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

LABEL: Final = re.compile(r"yard-[0-9a-f]{12}-[0-9a-f]{32}")


class ForeignPhase(StrEnum):
    """What the foreign engine says of a pilot."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ForeignPilot:
    """One entry of the foreign engine's list. ``ends_at`` is in seconds since the epoch, ``None`` if untold."""

    label: str
    handle: str
    phase: ForeignPhase
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class PilotOrder:
    """What a pilot is to be: its label, the name and the labels of its node, and how the agent joins.

    ``token`` admits this one node once, and for a limited time. It must not appear in a command line.
    """

    label: str
    node: str
    shape: Mapping[str, Any]
    hours: float
    url: str
    token: str = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)


class EngineFault(Exception):
    """The foreign engine could not be asked, or answered nonsense: nothing is known. ``code`` is stable, and has a
    sentence in :data:`controlplane.clause_templates.RECORD`."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code, self.detail = code, detail


class EngineRefused(EngineFault):
    """The foreign engine refused a pilot: it has surely not been started."""


class ForeignEngine(Protocol):
    """One configured foreign engine. Each method may block, for a bounded time, and raises :class:`EngineFault`."""

    def up(self, order: PilotOrder) -> str:
        """Ask for one pilot; return its handle."""

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        """Ask to end these pilots: in order, or at once with ``force``. One that has ended already is no fault."""

    def list(self, tag: str) -> list[ForeignPilot]:
        """Return all pilots whose label begins with ``yard-<tag>-``, those that ended of late included."""

    def price(self, shape: Mapping[str, Any]) -> float:
        """Return what an hour of a pilot of this shape costs, in the installation's unit."""

    def limits(self) -> int | None:
        """Return how many pilots the engine allows in all; ``None`` if it sets no limit."""
