"""A source of cards that is a vendor's library, called in a reader's process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agents.devices.card import Card, UnreadableOutput
from agents.devices.readers.library import NothingToTell, ReaderSilent, VendorProcess
from agents.devices.readers.shared_object import find
from agents.devices.vendors import ProbedHost
from agents.ends import clause
from agents.notes import NoteText

_ABSENT_PAUSE_S = 600.0


class LibrarySource:
    """See :class:`agents.devices.cards.CardSource`. ``names`` and ``folders`` are the library's; it is called only on a
    host that has it and a device of its vendor. ``card`` makes a card from the reader's answer.

    The reader returns ``cards``, or ``absent``, or ``broken`` with the reason.
    """

    thorough = True
    period_s = 1.0

    def __init__(
        self,
        name: str,
        module: str,
        names: tuple[str, ...],
        card: Callable[[dict[str, Any], ProbedHost], Card],
        *,
        pci_vendor: str,
        folders: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.names, self.folders, self.pci_vendor = names, folders, pci_vendor
        self.reader = VendorProcess(module, name)
        self._card = card
        self._absent_until = 0.0

    def present(self, host: ProbedHost) -> bool:
        if time.monotonic() < self._absent_until or find(self.names, self.folders, host.root) is None:
            return False
        return self.pci_vendor in host.pci_vendors()

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self._cards("look", host, deadline_s)

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self._cards("sample", host, deadline_s)

    def _cards(self, question: str, host: ProbedHost, deadline_s: float) -> list[Card]:
        told = self.reader.ask(question, deadline_s)
        if broken := told.get("broken"):
            self.reader.close()
            raise ReaderSilent(str(broken)[:300])
        cards = told.get("cards")
        if told.get("absent") or not cards:
            self.reader.close()
            self._absent_until = time.monotonic() + _ABSENT_PAUSE_S
            raise NothingToTell(NoteText(clause("NoCard", source=self.name)))
        if not isinstance(cards, list):
            raise UnreadableOutput("its answer is no list of cards")
        return [self._card(card, host) for card in cards]

    def close(self) -> None:
        self.reader.close()
