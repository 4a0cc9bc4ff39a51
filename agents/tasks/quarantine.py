"""Parts that an agent could not take over at its start: set aside with the reason, until a person decides.

They stay known and keep their devices, what of them runs goes on, and an end that can be seen is told as any. The rest
of the node is served. A person has the taking over tried again (*release*), or ends the part for good (*discard*).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from agents.protocol import AsideOrder, SetAside
from agents.supervisor.procfs import boottime
from agents.tasks.part import Part

_LONGEST_REASON: Final = 300


@dataclass
class Quarantine:
    """The parts that are set aside, with when that was, and how often their taking over was tried."""

    parts: dict[str, tuple[Part, SetAside, float]] = field(default_factory=dict)

    def put(self, part: Part, error: Exception) -> None:
        """Set a part aside, or note that another try failed too."""
        name = part.intent.part
        _, former, since = self.parts.get(name, (part, None, boottime()))
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        tries = 1 if former is None else former.tries + 1
        self.parts[name] = (part, SetAside(name, part.intent.folder, reason, tries=tries), since)

    def drop(self, name: str) -> None:
        """The part is one like any other again, or has ended."""
        self.parts.pop(name, None)

    def asked(self, order: AsideOrder) -> Part | None:
        """The part that an order is for; None for one that came twice or too late."""
        found = self.parts.get(order.part)
        return found[0] if found is not None and found[1].tries == order.tries else None

    def told(self) -> list[SetAside]:
        """What the control plane is told of them."""
        now = boottime()
        return [
            SetAside(told.part, told.folder, told.reason, age_s=round(now - since, 1), tries=told.tries)
            for _, told, since in self.parts.values()
        ]
