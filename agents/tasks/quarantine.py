"""Parts that an agent could not take over at its start: set aside with the reason, until a person decides.

They stay known and keep their devices, their processes go on, and an end that can be observed is reported as any other.
The rest of the node is served. A person requests another attempt to take the part over (*release*), or ends it for good
(*discard*).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from agents.protocol import AsideOrder, SetAside
from agents.supervisor.procfs import boottime
from agents.tasks.part import StartedPart

_LONGEST_REASON: Final = 300


@dataclass
class Quarantine:
    """The parts that are set aside, since when, and how often taking them over was tried."""

    parts: dict[str, tuple[StartedPart, SetAside, float]] = field(default_factory=dict)

    def put(self, part: StartedPart, error: Exception) -> None:
        """Set a part aside, or record that another attempt to take it over failed."""
        name = part.intent.part
        _, former, since = self.parts.get(name, (part, None, boottime()))
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        tries = 1 if former is None else former.tries + 1
        self.parts[name] = (part, SetAside(name, part.intent.folder, reason, tries=tries), since)

    def drop(self, name: str) -> None:
        """Remove a part that was taken over, or has ended."""
        self.parts.pop(name, None)

    def asked(self, order: AsideOrder) -> StartedPart | None:
        """Return the part that an order is for; None for an order that came twice or too late."""
        found = self.parts.get(order.part)
        return found[0] if found is not None and found[1].tries == order.tries else None

    def told(self) -> list[SetAside]:
        """Return the entries for the control plane."""
        now = boottime()
        return [
            SetAside(told.part, told.folder, told.reason, age_s=round(now - since, 1), tries=told.tries)
            for _, told, since in self.parts.values()
        ]
