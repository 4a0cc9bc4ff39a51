"""Finds NVIDIA GPUs through ``pynvml``, asked in a process of its own with a deadline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from agents import devices
from agents.probes import Host
from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample, Link
from agents.vendor import NoAnswer, VendorProcess

DEADLINE_S = 10.0
ABSENT_PAUSE_S = 600.0
WEDGED_PAUSE_S = 30.0
# GB/s of one NVLink by version, both directions together; of one PCIe lane by generation, one direction.
_NVLINK_GBPS = {1: 40.0, 2: 50.0, 3: 50.0, 4: 50.0, 5: 100.0}
_PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


class NvidiaProbe:
    """Remembers every card it ever saw: one that is lost is shown as lost, not dropped."""

    def __init__(self, host: Host, deadline_s: float = DEADLINE_S) -> None:
        self.host = host
        self.deadline_s = deadline_s
        self.reader = VendorProcess("agents.readers.nvml", "NVIDIA's management library")
        self._devices: dict[str, Device] = {}
        self._errors: dict[str, DeviceError] = {}
        self._note = ""
        self._silent_until = 0.0

    def _ask(self, question: str) -> list[dict[str, Any]] | None:
        """The cards; None when nothing could be learned, with the note that says why."""
        if time.monotonic() < self._silent_until:
            return None
        try:
            told = self.reader.ask(question, self.deadline_s)
        except NoAnswer as error:
            self._note = str(error)
            self._silent_until = time.monotonic() + WEDGED_PAUSE_S
            return None
        self._note = told.get("note") or told.get("broken") or ""
        if told.get("absent"):
            self.reader.close()
            self._silent_until = time.monotonic() + ABSENT_PAUSE_S
        return told.get("cards")

    def discover(self) -> list[Device]:
        cards = self._ask("look")
        if cards is None:
            if self._note:
                self._mark_all("UNHEALTHY", self._note)
            return list(self._devices.values())
        self._hear(cards)
        by_pci = {card["pci"].lower(): card["uuid"] for card in cards if "pci" in card}
        seen = set()
        for card in cards:
            if "name" in card:
                self._devices[card["uuid"]] = self._device(card, by_pci)
                seen.add(card["uuid"])
        for uuid in self._devices.keys() - seen:
            reason = self._errors[uuid].detail if uuid in self._errors else "the driver does not list it any more"
            self._mark(uuid, "LOST", reason)
        return sorted(self._devices.values(), key=lambda device: device.index)

    def _device(self, card: dict[str, Any], by_pci: dict[str, str]) -> Device:
        attributes = {"driver": card["driver"]} if card.get("driver") else {}
        if card.get("mig"):
            attributes["mig"] = "enabled; its partitions are not used separately yet"
        return Device(
            uuid=card["uuid"],
            kind="gpu",
            vendor="nvidia",
            model=card["name"],
            index=card["index"],
            memory_bytes=card["memory_bytes"],
            numa=self._numa(card["pci"]),
            pci=card["pci"],
            features=devices.features("nvidia", card["name"]),
            attributes=attributes,
            links=_links(card, by_pci),
        )

    def _numa(self, pci: str) -> int | None:
        domain, _, rest = pci.lower().partition(":")
        path = self.host.root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
        try:
            numa = int(Path(path).read_text())
        except (OSError, ValueError):
            return None
        return numa if numa >= 0 else None

    def _mark_all(self, health: str, reason: str) -> None:
        for uuid in self._devices:
            self._mark(uuid, health, reason)

    def _mark(self, uuid: str, health: str, reason: str) -> None:
        self._devices[uuid] = msgspec.structs.replace(self._devices[uuid], health=health, health_reason=reason)

    def _hear(self, cards: list[dict[str, Any]]) -> None:
        """Note the cards that answer with an error; a lost card may not even tell its uuid."""
        by_index = {device.index: device.uuid for device in self._devices.values()}
        self._errors = {}
        for card in cards:
            uuid = card.get("uuid") or by_index.get(card["index"])
            if uuid is not None and "error" in card:
                code = "GPU_IS_LOST" if card["lost"] else "NVML_ERROR"
                self._errors[uuid] = DeviceError(uuid=uuid, code=code, detail=card["error"])

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        if not self._devices:
            return []
        cards = self._ask("sample")
        if cards is None:
            return []
        self._hear(cards)
        names = ("utilisation", "memory_used_bytes", "power_w", "temperature_c")
        return [
            DeviceSample(uuid=card["uuid"], age_s=0.0, **{name: card.get(name) for name in names})
            for card in cards
            if "error" not in card
        ]

    def errors(self) -> list[DeviceError]:
        return list(self._errors.values())

    def notes(self) -> list[str]:
        return [self._note] if self._note else []

    def close(self) -> None:
        self.reader.close()


def _links(card: dict[str, Any], by_pci: dict[str, str]) -> list[Link]:
    """NVLinks summed by peer (a switch is one peer), and the PCIe link to the host."""
    sums: dict[str, float] = {}
    for link in card.get("nvlinks", []):
        remote = (link["remote"] or "").lower()
        peer = by_pci.get(remote, "nvswitch")
        sums[peer] = sums.get(peer, 0.0) + _NVLINK_GBPS.get(link["version"] or 0, 50.0)
    found = [Link(peer, "NVLINK", gbps) for peer, gbps in sorted(sums.items())]
    lane = _PCIE_LANE_GBPS.get(card.get("pcie_generation") or 0)
    if lane is not None and card.get("pcie_width"):
        found.append(Link("host", "PCIE", round(lane * card["pcie_width"], 2)))
    return found


def probe(host: Host) -> NvidiaProbe:
    return NvidiaProbe(host)
