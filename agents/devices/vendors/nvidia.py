"""Finds NVIDIA GPUs through ``pynvml``, called in a process of its own with a deadline."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from agents.devices.card import Card, Condition, Process, narrow_link, pci_address, slow_link
from agents.devices.cards import DEADLINE_S, CardProbe, Maker
from agents.devices.readers.library import ReaderSilent, VendorProcess
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible
from agents.devices.xid import HOLD_S, RECOVERY_CHANGED, condition, recovery
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import DeviceClaim, DeviceSample, Division, Link, Partition

VENDOR = "nvidia"
# Variables: CUDA C++ programming guide; NVIDIA container toolkit ("void" exposes no device to a container).
VISIBLE = Visible(
    ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    by="uuid",
    none={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"},
)
LIBRARY = "NVIDIA's management library"
ABSENT_PAUSE_S = 600.0
WHOLE_EVERY_S = 5.0
# Cards that no stage has held for this time are read rarely, and no handle of their driver is held in between.
IDLE_AFTER_S = 60.0
IDLE_PERIOD_S = 15.0
# While this file is younger than ten minutes no handle of the driver is held and nothing is read.
RELEASE_FILE = "run/switchyard/release-devices"
RELEASE_S = 600.0
# From this utilisation on a card's link runs at full speed; an idle one slows it down to save power.
BUSY = 0.5
# GB/s of one NVLink by version, both directions together; of one PCIe lane by generation, one direction.
_NVLINK_GBPS = {1: 40.0, 2: 50.0, 3: 50.0, 4: 50.0, 5: 100.0}
_PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Reasons for a reduced clock, with the bits of nvmlClocksEventReasons; an idle card is not throttled.
_THROTTLES = (
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "heat (software)"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
)
# The distance of two cards on the PCIe tree, in nvidia-smi's words.
_NEAR = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Fields that are not in every answer.
_SELDOM = (
    *("remap", "retirement_pending", "ecc_uncorrected", "recovery", "persistence", "mig"),
    *("pcie_width", "pcie_width_max", "pcie_generation_max"),
)


class NvmlSource:
    """See :class:`agents.devices.cards.CardSource`. Keeps what is not in every answer: faults, and processes of a
    card."""

    name = LIBRARY
    thorough = True

    def __init__(self) -> None:
        self.reader = VendorProcess("agents.devices.readers.nvml", LIBRARY)
        self._absent_until = 0.0
        self._xids: dict[str, dict[int, float]] = {}
        self._processes: dict[str, tuple[Process, ...] | None] = {}
        self._whole_at = 0.0
        self._kept: dict[str, dict[str, Any]] = {}
        self._slow: dict[str, list[int]] = {}
        self._used_at = time.monotonic()

    @property
    def period_s(self) -> float:
        return IDLE_PERIOD_S if self.releases_handles else 1.0

    @property
    def releases_handles(self) -> bool:
        """Whether the driver's handles are closed after each question: if the cards are idle and opening is cheap
        (persistence mode), or if one of them waits for a reset, which a held handle would block."""
        if time.monotonic() - self._used_at < IDLE_AFTER_S or not self._kept:
            return False
        kept = self._kept.values()
        return all(one.get("persistence") for one in kept) or any(one.get("recovery") for one in kept)

    def use(self) -> None:
        """Record that a stage holds a card."""
        self._used_at = time.monotonic()

    def present(self, host: ProbedHost) -> bool:
        return time.monotonic() >= self._absent_until

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self._cards("look", host, deadline_s)

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        due = time.monotonic() - self._whole_at >= WHOLE_EVERY_S
        return self._cards("sample all" if due else "sample", host, deadline_s)

    def _cards(self, question: str, host: ProbedHost, deadline_s: float) -> list[Card]:
        with host.instances.lock if host.instances is not None else nullcontext():
            cards = self._ask(question, host, deadline_s)
            own = host.instances.own if host.instances is not None else None
        by_pci = {(pci_address(card["pci"]) or ""): card["uuid"] for card in cards if card.get("pci")}
        return [self._card(card, by_pci, own) for card in cards]

    def _ask(self, question: str, host: ProbedHost, deadline_s: float) -> list[dict[str, Any]]:
        if _is_released(host):
            self.reader.close()
            raise ReaderSilent(NoteText(clause("LetGo", file=f"/{RELEASE_FILE}")))
        told = self.reader.ask(f"{question} once" if self.releases_handles else question, deadline_s)
        if told.get("absent"):
            self.reader.close()
            self._absent_until = time.monotonic() + ABSENT_PAUSE_S
        if complaint := told.get("note") or told.get("broken"):
            raise ReaderSilent(complaint)
        now = time.monotonic()
        if question != "sample":
            self._whole_at = now
        for fault in told.get("xids", []):
            self._xids.setdefault(fault["uuid"], {})[fault["xid"]] = now
            if fault["xid"] == RECOVERY_CHANGED:
                self._whole_at = 0.0
        return list(told.get("cards", []))

    def _card(self, card: dict[str, Any], by_pci: dict[str, str], own: frozenset[str] | None) -> Card:
        uuid = card.get("uuid", "")
        if "processes" in card:
            told = card["processes"]
            self._processes[uuid] = None if told is None else tuple(Process(pid, used) for pid, used in told)
        self._kept.setdefault(uuid, {}).update({name: card[name] for name in _SELDOM if name in card})
        self._note_speed(uuid, card)
        clock = card.get("clock_mhz")
        return Card(
            index=card["index"],
            model=card.get("name", ""),
            uuid=uuid,
            pci=pci_address(card["pci"]) if card.get("pci") else None,
            memory_bytes=card.get("memory_bytes"),
            memory_used_bytes=card.get("memory_used_bytes"),
            utilisation=card.get("utilisation"),
            power_w=card.get("power_w"),
            energy_j=card.get("energy_j"),
            temperature_c=card.get("temperature_c"),
            clock_hz=clock * 1e6 if clock is not None else None,
            throttled=", ".join(name for bit, name in _THROTTLES if (card.get("throttle") or 0) & bit),
            conditions=self._conditions(uuid, card, is_divided=own is not None),
            processes=self._processes.get(uuid),
            tells_memory=self._processes.get(uuid) is not None,
            attributes=_attributes(card),
            links=_links(card, by_pci),
            division=_division(self._kept[uuid].get("mig"), own),
        )

    def _note_speed(self, uuid: str, card: dict[str, Any]) -> None:
        """Record the last generations below the possible one that a busy card's link was found at."""
        now, highest = card.get("pcie_generation"), self._kept[uuid].get("pcie_generation_max")
        if now and highest and (card.get("utilisation") or 0.0) >= BUSY:
            self._slow[uuid] = [*self._slow.get(uuid, [])[-1:], now] if now < highest else []

    def _conditions(self, uuid: str, card: dict[str, Any], *, is_divided: bool) -> tuple[Condition, ...]:
        found: list[Condition] = []
        if "error" in card:
            found.append(
                Condition("GPU_IS_LOST", "LOST", card["error"])
                if card["lost"]
                else Condition("NVML_ERROR", "UNHEALTHY", card["error"])
            )
        since, told = time.monotonic() - HOLD_S, self._xids.get(uuid, {})
        kept = self._kept.get(uuid, {})
        asked = kept.get("recovery")
        # If the library reports a requested recovery action, the Xid that only announces it is redundant.
        lately = [xid for xid, at in sorted(told.items()) if at > since and (xid != RECOVERY_CHANGED or asked is None)]
        found += [known for xid in lately if (known := condition(xid))]
        if asked is not None and (wanted := recovery(asked)):
            found.append(wanted)
        if kept.get("remap"):
            _, _, pending, failed = kept["remap"]
            if failed:
                found.append(Condition("ROW_REMAP_FAILED", "UNHEALTHY", NoteText(clause("RowNotRemapped"))))
            if pending:
                found.append(Condition("ROW_REMAP_PENDING", "DEGRADED", NoteText(clause("RowRemapPending"))))
        if kept.get("retirement_pending"):
            found.append(Condition("PAGE_RETIREMENT_PENDING", "DEGRADED", NoteText(clause("PageRetirementPending"))))
        if errors := kept.get("ecc_uncorrected"):
            found.append(Condition("ECC_UNCORRECTED", "DEGRADED", NoteText(clause("EccUncorrected", count=errors))))
        mig = kept.get("mig")
        if mig is not None and not mig["made"] and not is_divided:
            found.append(Condition("MIG_EMPTY", "UNHEALTHY", NoteText(clause("MigEmpty"))))
        if len(seen := self._slow.get(uuid, [])) > 1:
            found += slow_link(seen[-1], kept.get("pcie_generation_max"))
        return (*found, *narrow_link(kept.get("pcie_width"), kept.get("pcie_width_max")))

    def close(self) -> None:
        self.reader.close()


def _attributes(card: dict[str, Any]) -> dict[str, str]:
    attributes = {"driver": card["driver"]} if card.get("driver") else {}
    if card.get("pcie_generation") and card.get("pcie_width"):
        attributes["pcie"] = f"gen{card['pcie_generation']} x{card['pcie_width']}"
    if card.get("pcie_generation_max") and card.get("pcie_width_max"):
        attributes["pcie_max"] = f"gen{card['pcie_generation_max']} x{card['pcie_width_max']}"
    if (card.get("pcie_generation_card") or 0) > (card.get("pcie_generation_max") or 99):
        attributes["pcie_card_max"] = f"gen{card['pcie_generation_card']}"
    told = [(name, card.get(f"ecc_{name}")) for name in ("corrected", "uncorrected", "uncorrected_ever")]
    if errors := [f"{name.replace('_', ' ')} {count}" for name, count in told if count is not None]:
        attributes["ecc_errors"] = ", ".join(errors)
    if card.get("remap") is not None:
        corrected, uncorrected, _, _ = card["remap"]
        attributes["remapped_rows"] = f"corrected {corrected}, uncorrected {uncorrected}"
    if card.get("mig_mode") is not None:
        attributes["mig"] = "on" if card["mig_mode"] else "off"
    if card.get("mig") and card["mig"]["split"]:
        attributes["mig_split"] = f"{card['mig']['split']} that hold a part of an instance only are not given out"
    return attributes


def _division(mig: dict[str, Any] | None, own: frozenset[str] | None) -> Division | None:
    """Return the partitioning of a card in MIG mode. ``own`` are the instances that this agent created; None if it
    creates none."""
    if mig is None:
        return None
    made = [Partition(**each) for each in mig["made"] if each["uuid"] not in (own or ())]
    return Division("MIG", mig["profiles"], made, makes=own is not None)


def _links(card: dict[str, Any], by_pci: dict[str, str]) -> tuple[Link, ...]:
    """Return NVLinks summed by peer (a switch is one peer), PCIe to other cards by distance, and PCIe to the host."""
    sums: dict[str, float] = {}
    for link in card.get("nvlinks") or []:
        peer = by_pci.get(pci_address(link["remote"] or "") or "", "nvswitch")
        sums[peer] = sums.get(peer, 0.0) + _NVLINK_GBPS.get(link["version"] or 0, 50.0)
    found = [Link(peer, "NVLINK", gbps) for peer, gbps in sorted(sums.items())]
    near = card.get("near") or {}
    found += [Link(peer, _NEAR[level]) for peer, level in sorted(near.items()) if peer not in sums and level in _NEAR]
    lane = _PCIE_LANE_GBPS.get(card.get("pcie_generation_max") or 0)
    if lane is not None and card.get("pcie_width"):
        found.append(Link("host", "PCIE", round(lane * card["pcie_width"], 2)))
    return tuple(found)


def _is_released(host: ProbedHost) -> bool:
    """Whether the operator asked recently to release the driver's handles."""
    try:
        age_s = time.time() - (host.root / RELEASE_FILE).stat().st_mtime
    except OSError:
        return False
    return -RELEASE_S < age_s < RELEASE_S


class NvidiaProbe(CardProbe):
    """A probe that tells its source whether a stage holds a card."""

    def __init__(self, host: ProbedHost, source: NvmlSource, deadline_s: float) -> None:
        super().__init__(host, Maker(VENDOR, "gpu"), (source,), deadline_s)
        self.nvml = source

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        if any(claim.vendor == VENDOR and claim.kind != "cpu" and not claim.simulated for claim in claims):
            self.nvml.use()
        return super().sample(claims)


def probe(host: ProbedHost, deadline_s: float = DEADLINE_S) -> NvidiaProbe:
    return NvidiaProbe(host, NvmlSource(), deadline_s)
