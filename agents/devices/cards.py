"""A probe of one vendor's cards: asks the vendor's tools or library, tracks every card, and reports faults.

It has the sources of a vendor, best first; the first that is present and answers readably is used until it fails. A
card that is no longer reported is LOST, not dropped. What cannot be read or does not answer becomes a note, never an
exception.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from agents.devices import models, visible
from agents.devices.card import WORSE, Card, Condition, Health, UnreadableOutput
from agents.devices.foreign import foreign_processes
from agents.devices.readers.library import NothingToTell, ReaderSilent
from agents.devices.vendors import ProbedHost
from agents.ends import clause
from agents.notes import NoteText, clauses, joined
from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample, Link

DEADLINE_S = 10.0
WEDGED_PAUSE_S = 30.0
UNLISTED: Final = NoteText(clause("Unlisted"))
Codes = set[tuple[str, str]]
# Exceptions that unexpected input causes in parsers.
BROKEN_INPUT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error)


class CardSource(Protocol):
    """One source of information about a vendor's cards. A sample of a ``thorough`` one reports every condition that a
    look reports."""

    @property
    def name(self) -> str:
        """Its name in sentences."""

    @property
    def thorough(self) -> bool:
        """See above."""

    @property
    def period_s(self) -> float:
        """The interval between samples that is worth their cost, in seconds."""

    def present(self, host: ProbedHost) -> bool:
        """Whether it may exist on this host; cheap."""

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        """Report all about every card. Raises ReaderSilent, UnreadableOutput, or NothingToTell if another source may
        know."""

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        """Report the changing values of every card; raises as above."""

    def close(self) -> None:
        """Release its resources."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A vendor in our spelling, and the kind of its devices. ``links`` returns, by PCI address, links known to the
    kernel, for sources that report none."""

    vendor: str
    kind: str
    links: Callable[[ProbedHost], Mapping[str, tuple[Link, ...]]] | None = None


class CardProbe:
    """See :class:`agents.devices.vendors.Probe`. ``source`` is the one that answered last, None before any did."""

    def __init__(
        self, host: ProbedHost, maker: Maker, sources: Sequence[CardSource], deadline_s: float = DEADLINE_S
    ) -> None:
        self.host = host
        self.maker = maker
        self.sources = sources
        self.deadline_s = deadline_s
        self.source: CardSource | None = None
        self._devices: dict[str, Device] = {}
        self._indices: dict[int, str] = {}
        self._errors: dict[str, DeviceError] = {}
        self._notes: list[str] = []
        self._told: dict[str, Codes] = {}
        self._sampled: dict[str, Codes] | None = None
        self._news = False
        self._used: dict[str, dict[int, int]] = {}
        self._silent_until: dict[str, float] = {}
        self._silent_note: dict[str, str] = {}

    @property
    def prompt(self) -> bool:
        """Whether no source is present: then no thread is needed either."""
        return self.source is None and not any(source.present(self.host) for source in self.sources)

    @property
    def period_s(self) -> float:
        return self.source.period_s if self.source is not None else 1.0

    # -- discovery

    def discover(self) -> list[Device]:
        self._notes, self._news = [], False
        present = [source for source in self.sources if source.present(self.host)]
        worst: Health = "OK"
        for source in present:
            try:
                cards = self._ask(source, "look")
            except NothingToTell:
                continue
            except ReaderSilent as error:
                self._notes.append(error.note)
                worst = "UNHEALTHY"
            except BROKEN_INPUT as error:
                self._notes.append(_unreadable(source, error))
                worst = "DEGRADED" if worst == "OK" else worst
            else:
                self.source = source
                self._take(cards)
                return self._listed()
        worst = worst if self._notes else "LOST"
        self._mark_all(worst, self._notes[0] if self._notes else NoteText(clause("Untold")))
        return self._listed()

    def _ask(self, source: CardSource, question: str) -> list[Card]:
        """Return the source's answer. One that was silent is not asked for a while; its error is repeated."""
        if time.monotonic() < self._silent_until.get(source.name, 0.0):
            raise ReaderSilent(self._silent_note[source.name])
        try:
            ask = source.look if question == "look" else source.sample
            return ask(self.host, self.deadline_s)
        except ReaderSilent as error:
            self._silent_until[source.name] = time.monotonic() + WEDGED_PAUSE_S
            self._silent_note[source.name] = error.note
            raise

    def _listed(self) -> list[Device]:
        return sorted(self._devices.values(), key=lambda device: (device.index, device.uuid))

    def _take(self, cards: list[Card]) -> None:
        named = self._identify(cards)
        self._errors, self._told, self._sampled = {}, {}, None
        seen = self.maker.links(self.host) if self.maker.links is not None else {}
        names = {name: uuid for uuid, card in named.items() for name in (f"#{card.index}", card.pci) if name}
        for uuid, card in named.items():
            if card.model or uuid not in self._devices:
                told = card.links or seen.get(card.pci or "", ())
                links = [msgspec.structs.replace(link, peer=names.get(link.peer, link.peer)) for link in told]
                self._devices[uuid] = self._device(uuid, card, links)
            conditions = self._conditions(uuid, card)
            self._told[uuid] = _codes(conditions)
            if conditions:
                note = joined(condition.note for condition in conditions)
                self._mark(uuid, _worst(conditions).health, note, conditions)
        self._indices = {card.index: uuid for uuid, card in named.items()}
        if self.maker.vendor:
            visible.count_devices(self.maker.vendor, len(named))
        for uuid in self._devices.keys() - named.keys():
            self._mark(uuid, "LOST", UNLISTED)
            self._errors[uuid] = _error(uuid, "DEVICE_LOST", UNLISTED)

    def _identify(self, cards: list[Card]) -> dict[str, Card]:
        """Return cards by uuid; one without a unique uuid gets one from its place on the host."""
        count = Counter(card.uuid for card in cards if card.uuid)
        for uuid, times in sorted(count.items()):
            if times > 1:
                self._notes.append(NoteText(clause("SameUuid", count=times, vendor=self.maker.vendor, uuid=uuid)))
        named: dict[str, Card] = {}
        # Another source may have reported the uuid of the card there; a look without one keeps it.
        places = Counter(device.pci for device in self._devices.values() if device.pci)
        there = {pci: uuid for uuid, device in self._devices.items() if (pci := device.pci) and places[pci] == 1}
        for card in cards:
            if card.uuid and count[card.uuid] == 1:
                uuid = card.uuid
            elif not card.uuid and card.pci in there and there[card.pci] not in named:
                uuid = there[card.pci]
            elif not card.model and card.index in self._indices:
                uuid = self._indices[card.index]
            elif not card.model and card.conditions:
                # The card was broken before it was first identified.
                why = joined(condition.note for condition in card.conditions)
                which = clause("CardUnusable", index=card.index, vendor=self.maker.vendor)
                self._notes.append(NoteText(which, *why.said))
                continue
            else:
                place = (card.pci or str(card.index)).replace(":", "-")
                uuid = f"{self.maker.vendor}-{self.host.machine}-{place}"
            while uuid in named:
                uuid = f"{uuid}-{card.index}"
            named[uuid] = card
        return named

    def _device(self, uuid: str, card: Card, links: list[Link]) -> Device:
        visible.name_device(uuid, card.visible_as)
        vendor = card.vendor or self.maker.vendor
        known = models.known(vendor, card.model)
        memory = card.memory_bytes
        if memory is None:
            memory = known.memory_bytes if known else 0
        return Device(
            uuid=uuid,
            kind=card.kind or self.maker.kind,
            vendor=vendor,
            model=card.model or "unknown",
            index=card.index,
            memory_bytes=memory,
            numa=card.numa if card.numa is not None else self.host.numa(card.pci),
            pci=card.pci,
            simulated=card.simulated,
            features=card.features or (dict(known.features) if known else {}),
            attributes=dict(card.attributes),
            links=links,
            division=card.division,
            sharing="hard" if card.division is not None else "soft" if card.tells_memory else "none",
        )

    # -- health

    def _conditions(self, uuid: str, card: Card) -> tuple[Condition, ...]:
        """Return the conditions of a card; those that stop work are recorded as faults too."""
        conditions = card.conditions + foreign_processes(card.processes)
        if conditions and WORSE[(worst := _worst(conditions)).health] >= WORSE["UNHEALTHY"]:
            self._errors[uuid] = _error(uuid, worst.code, worst.note)
        return conditions

    def _mark_all(self, health: Health, note: str) -> None:
        if health != "OK":
            for uuid in self._devices:
                self._mark(uuid, health, note)

    def _mark(self, uuid: str, health: Health, note: str, conditions: tuple[Condition, ...] = ()) -> None:
        device = self._devices[uuid]
        attributes = {name: value for name, value in device.attributes.items() if name != "conditions"}
        if conditions:
            attributes["conditions"] = ",".join(sorted({condition.code for condition in conditions}))
        self._devices[uuid] = msgspec.structs.replace(
            device, health=health, health_reason=str(note)[:300], health_said=clauses(note), attributes=attributes
        )

    # -- samples

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        self._news, self._used = False, {}
        if self.source is None or not self._devices:
            return []
        try:
            cards = self._ask(self.source, "sample")
            named = self._identify_again(cards)
        except ReaderSilent as error:
            self._set_note(error.note)
            return []
        except BROKEN_INPUT as error:
            self._set_note(_unreadable(self.source, error))
            return []
        self._errors, self._notes = {}, []
        codes = {uuid: _codes(self._conditions(uuid, card)) for uuid, card in named.items()}
        for uuid in self._devices.keys() - named.keys():
            self._errors[uuid] = _error(uuid, "DEVICE_LOST", UNLISTED)
            codes[uuid] = {("DEVICE_LOST", "LOST")}
        divided = any(card.division not in (None, self._devices[uuid].division) for uuid, card in named.items())
        self._news = self._news or divided or self._is_news(codes)
        self._sampled = codes
        self._used = {
            uuid: {one.pid: one.memory_bytes or 0 for one in card.processes}
            for uuid, card in named.items()
            if card.tells_memory and card.processes is not None
        }
        lost = {error.uuid for error in self._errors.values() if ("GPU_IS_LOST", "LOST") in codes[error.uuid]}
        return [_sample(uuid, card) for uuid, card in named.items() if uuid not in lost]

    def _is_news(self, codes: dict[str, Codes]) -> bool:
        """Whether a device's health has to be derived again. A sample may report fewer conditions than the look before
        it, but never more."""
        assert self.source is not None, "a sample has a source"
        for uuid, now in codes.items():
            told = self._told.get(uuid, set())
            if self._devices[uuid].health == "LOST":
                now = now - {("DEVICE_LOST", "LOST")}
            if not now <= told or (self.source.thorough and now != told):
                return True
            if self._sampled is not None and codes[uuid] != self._sampled.get(uuid, set()):
                return True
        return False

    def _identify_again(self, cards: list[Card]) -> dict[str, Card]:
        """Return cards by uuid as of the last look: a sample may have only the number of a card."""
        by_uuid = {card.uuid: card for card in cards if card.uuid in self._devices}
        if len(by_uuid) == len(cards):
            return by_uuid
        found = {}
        for card in cards:
            uuid = card.uuid if card.uuid in self._devices else self._indices.get(card.index)
            if uuid is None or uuid not in self._devices:
                self._news = True  # a card that was not there at the last look
                continue
            found[uuid] = card
        return found

    def _set_note(self, note: str) -> None:
        self._news = self._notes != [note]
        self._notes = [note]

    # -- reports

    def errors(self) -> list[DeviceError]:
        return [self._errors[uuid] for uuid in sorted(self._errors)]

    def notes(self) -> list[str]:
        return list(self._notes)

    def news(self) -> bool:
        return self._news

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        return self._used

    def close(self) -> None:
        for source in self.sources:
            source.close()


def _unreadable(source: CardSource, error: Exception) -> NoteText:
    broken = str(error) if isinstance(error, UnreadableOutput) else f"its answer is broken ({type(error).__name__})"
    return NoteText(clause("Unreadable", source=source.name, error=broken))


def _error(uuid: str, code: str, note: str) -> DeviceError:
    return DeviceError(uuid, code, str(note), clauses(note))


def _codes(conditions: tuple[Condition, ...]) -> Codes:
    return {(condition.code, condition.health) for condition in conditions}


def _worst(conditions: tuple[Condition, ...]) -> Condition:
    return max(conditions, key=lambda condition: WORSE[condition.health])


def _sample(uuid: str, card: Card) -> DeviceSample:
    return DeviceSample(
        uuid=uuid,
        age_s=0.0,
        utilisation=card.utilisation,
        memory_used_bytes=card.memory_used_bytes,
        power_w=card.power_w,
        energy_j=card.energy_j,
        temperature_c=card.temperature_c,
        clock_hz=card.clock_hz,
        throttled=card.throttled,
    )
