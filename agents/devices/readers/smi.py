"""A source of cards that is a vendor's command: its arguments, and the parsers of its output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agents.devices.card import Card
from agents.devices.readers.table import devices, header, smi_card
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost

Read = Callable[[list[str]], list[Card]]
Questions = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ToolSource:
    """``read`` gets the outputs for ``look`` or ``sample`` in order; ``sample`` is ``look`` unless given.

    ``pci_vendor`` is checked if two vendors gave their commands the same name.
    """

    tool: Tool
    look_questions: Questions
    read_look: Read
    sample_questions: Questions = ()
    read_sample: Read | None = None
    pci_vendor: str = ""
    # A tool is a process of its own, and some take half a second of a core.
    period_s: float = 5.0

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def thorough(self) -> bool:
        return self.sample_questions in ((), self.look_questions)

    def present(self, host: ProbedHost) -> bool:
        if self.tool.path(host.root) is None:
            return False
        return not self.pci_vendor or self.pci_vendor in host.pci_vendors()

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self.read_look(self._answers(host, self.look_questions, deadline_s))

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        read = self.read_sample or self.read_look
        return read(self._answers(host, self.sample_questions or self.look_questions, deadline_s))

    def _answers(self, host: ProbedHost, questions: Questions, deadline_s: float) -> list[str]:
        """The deadline is for all questions together."""
        until = time.monotonic() + deadline_s
        return [self.tool.ask(question, max(0.05, until - time.monotonic()), host.root) for question in questions]

    def close(self) -> None:
        """Nothing to release: each question is a process of its own."""


def smi_cards(text: str) -> list[Card]:
    """Return the cards of a table like that of nvidia-smi, with the driver's version."""
    driver = header(text, "Driver Version")
    attributes = {"driver": driver} if driver else {}
    return [with_attributes(smi_card(record), attributes) for record in devices(text)]


def with_attributes(card: Card, attributes: dict[str, str]) -> Card:
    """Return the card with more attributes."""
    return replace(card, attributes={**card.attributes, **attributes})
