"""Samples devices and parts every second, and sends the samples in batches; what cannot be sent is dropped."""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
import time
from collections import deque
from collections.abc import Collection

import msgspec

from agents.decode import setting
from agents.devices import cap
from agents.devices.cap import GRACE_S, MemoryCaps
from agents.devices.memory import DeviceMemory
from agents.devices.returned import BLIND_S, PATIENCE_S, Returns, is_blind, waits_for
from agents.ends import clause, say, told
from agents.link import skew
from agents.link.connection import ServerConnection
from agents.link.server import Channel, Server, ServerRefused
from agents.protocol import TELEMETRY_PATH, DeviceError, DeviceSample, Exit, HostSample, PartSample, TelemetryBatch
from agents.storage import disk_use
from agents.storage.disk_use import EVERY_S, DiskUse
from agents.supervisor import procfs, record
from agents.tasks.node import NodeTasks
from agents.tasks.part import StartedPart
from agents.telemetry.energy import EnergyMeter
from agents.telemetry.host import HostView
from agents.telemetry.metrics import NodeReading

log = logging.getLogger("switchyard.agent")

REST_PERIOD_S = 5.0
SEND_EVERY_S = 2.0
HOST_EVERY_S = 10.0
LOOK_AGAIN_S = 60.0
LOOK_NOW_PATIENCE_S = 0.5
MOST_KEPT = 4096
# Causes that a broken device may have produced.
BLAMED = frozenset({"EXIT_CODE", "SIGNAL"})
# Causes after which memory is not checked: nothing ran, or a reboot has cleared all devices.
NEVER_RAN = frozenset({"LAUNCH_FAILED", "NODE_REBOOT", "NODE_UNFIT"})
AGAIN_S = 0.2
# How often the newest samples are sent over a weak link.
WEAK_EVERY_S = 30.0
DISK_TICK_S = 1.0
# The grace period between the warning about device memory and the end of the part.
END_GRACE_S = 5.0
_encode = msgspec.msgpack.Encoder().encode


class Meter:
    """The telemetry of one node; it also discovers devices again periodically, and at once if one seems changed.

    Devices are sampled every second while anything runs or any of them could be lost, and sent in batches; at rest only
    the newest samples are sent, rarely.
    """

    def __init__(self, node: NodeTasks, view: HostView, link: ServerConnection, server: Server) -> None:
        self.node = node
        self.view = view
        self.link = link
        self.channel = Channel(server)
        self.energy = EnergyMeter()
        self.memory = DeviceMemory()
        self.disks = DiskUse(setting("YARD_AGENT_DISK_LOOK_S", EVERY_S))
        self.returns = Returns()
        self.caps = MemoryCaps(setting("YARD_AGENT_DEVICE_MEMORY_GRACE_S", GRACE_S))
        node.memory_of = view.memory_of
        node.measured = self._judge
        node.held_before = lambda part: self.returns.begin(part.intent.folder, part.intent.devices)
        node.released = self._released
        node.unreturned = self.returns.quarantined
        # Over a weak link only the newest samples are sent, rarely, whatever runs.
        self.is_link_weak = False
        self._sampling = asyncio.Lock()
        self._batches = 0
        self._before: dict[str, tuple[float, float]] = {}
        self._told_faults: list[DeviceError] = []
        self._kept: deque[tuple[float, DeviceSample]] = deque(maxlen=MOST_KEPT)
        self._parts: deque[tuple[float, PartSample]] = deque(maxlen=MOST_KEPT)
        # The newest sample of each device, with when it was taken.
        self._newest: dict[str, tuple[float, DeviceSample]] = {}

    async def run(self) -> None:
        """Sample for ever."""
        looked_at = sent_at = time.monotonic()
        host_at = 0.0
        while True:
            await self._pause()
            if time.monotonic() - looked_at > LOOK_AGAIN_S:
                looked_at = time.monotonic()
                if await asyncio.to_thread(self.view.look, LOOK_NOW_PATIENCE_S):
                    self.link.inventory_changed()
            await self._sample()
            live = bool(self.node.live)
            every_s = WEAK_EVERY_S if self.is_link_weak else SEND_EVERY_S if live else REST_PERIOD_S
            if time.monotonic() - sent_at > every_s - 0.3:
                sent_at = time.monotonic()
                host = None
                if sent_at - host_at > HOST_EVERY_S:
                    host_at = sent_at
                    on_disk = [
                        (self.disks.used_bytes(part.intent.part), part.intent.disk_bytes)
                        for part in self.node.live
                        if part.intent.disk_bytes
                    ]
                    host = await asyncio.to_thread(self.view.sample_host, on_disk)
                await self._send(host, newest_only=self.is_link_weak or not live)

    async def _pause(self) -> None:
        """Wait for the next sample: a second while it matters, else longer, until a start interrupts."""
        rest_until = time.monotonic() + REST_PERIOD_S * random.uniform(0.9, 1.1)
        await asyncio.sleep(self.node.timers.telemetry_s * random.uniform(0.95, 1.05))
        if self.view.has_accelerators:
            return
        while not self.node.live and time.monotonic() < rest_until:  # noqa: ASYNC110 - cheaper than an event per start
            await asyncio.sleep(1.0)

    async def _sample(self, at_once: Collection[str] = ()) -> None:
        """Sample what is due, and the devices ``at_once``; one sample at a time, as the probes require."""
        async with self._sampling:
            await self._sample_all(at_once)

    async def _sample_all(self, at_once: Collection[str]) -> None:
        before, faults = self.view.conditions(False), self._told_faults
        parts = {part.intent.part: (part.intent.folder, part.intent.devices) for part in self.node.live}
        claims = [claim for _, held in parts.values() for claim in held]
        devices = await asyncio.to_thread(self.view.sample, claims, at_once=at_once)
        seen = self.view.conditions(False)
        if seen != before:
            self.node.changed.set()
        changed = self.view.is_changed
        if self.view.is_restless:
            # A fault seen while sampling changes a device's health, which only a discovery reports.
            changed = await asyncio.to_thread(self.view.look, LOOK_NOW_PATIENCE_S) or changed
        self._told_faults = self.view.conditions(False).device_errors
        if changed or faults != seen.device_errors or faults != self._told_faults:
            # A transient fault leaves the inventory as it was, but the server has marked the device meanwhile.
            self.link.inventory_changed()
        now = time.monotonic()
        unreturned = self.returns.quarantined()
        self.returns.note(devices, parts, now)
        if unreturned != self.returns.quarantined():
            self.node.changed.set()
        if parts:
            inventory = self.view.inventory
            known = {device.uuid: device for device in inventory.devices} if inventory else {}
            self.energy.note(devices, known, parts, now)
            self.memory.note(devices, self._foreign(), parts, now)
            self._enforce_memory(now)
        self.energy.forget(parts)
        self.memory.forget(parts)
        self._kept.extend((now, sample) for sample in devices)
        self._newest |= {sample.uuid: (now - sample.age_s, sample) for sample in devices}
        self._parts.extend((now, sample) for sample in self._part_samples(now))

    def seen(self) -> NodeReading:
        """Return the node as it was last measured; nothing is measured for that."""
        devices = self.view.inventory.devices if self.view.inventory else []
        self._newest = {one.uuid: self._newest[one.uuid] for one in devices if one.uuid in self._newest}
        held = frozenset(claim.uuid for part in self.node.live for claim in part.intent.devices)
        errors = self.view.conditions(False).device_errors
        return NodeReading(self.view.name, devices, self._newest, held, errors, len(self.node.live))

    def _enforce_memory(self, now: float) -> None:
        """Warn parts that use more memory of a shared device than their share, and end those that continue."""
        live = {part.intent.part: part for part in self.node.live if part.pid}
        held = {name: part.intent.devices for name, part in live.items()}
        over, to_end = self.caps.judge(
            self.view.memory_by_process(), held, lambda name: self.node.executor.reach(live[name].intent).family(), now
        )
        for name, part in live.items():
            note = over[name].note if name in over else None
            if (note is None) != (part.over is None):
                part.over = note
                self.node.changed.set()
                if note:
                    log.warning("part %s: %s", name, note)
        for name in to_end:
            if live[name].stop is None:
                with self.node.loops.careful(f"note on why part {name} is ended"):
                    cap.remember(live[name].intent.folder, over[name])
                self.node.end(live[name], END_GRACE_S, cap.WHY)

    async def watch_disks(self) -> None:
        """Look at what parts take up on the disk and hold them to what they asked for, for ever."""
        while True:
            live = {part.intent.part: part for part in self.node.live if part.intent.disk_bytes and part.pid}
            for name in self.disks.due(live, time.monotonic()):
                intent = live[name].intent
                with self.node.loops.careful(f"look at the disk space of part {name}"):
                    await asyncio.to_thread(self.disks.look, name, intent.disk_bytes, intent.folder, live[name].rights)
                self._enforce_disk(live[name])
            await asyncio.sleep(DISK_TICK_S)

    def _enforce_disk(self, part: StartedPart) -> None:
        """Note that a part takes up more disk space than it asked for, and end it if it goes on to."""
        intent = part.intent
        note = self.disks.note(intent.part, intent.disk_bytes)
        if note != part.on_disk:
            part.on_disk = note
            self.node.changed.set()
        over = self.disks.over(intent.part, intent.disk_bytes)
        if over is not None and self.disks.is_to_end(intent.part) and part.is_live and part.stop is None:
            log.warning("part %s: %s", intent.part, note)
            with self.node.loops.careful(f"note on why part {intent.part} is ended"):
                disk_use.remember(intent.folder, over)
            self.node.end(part, END_GRACE_S, disk_use.WHY)

    async def _released(self, part: StartedPart, end: Exit) -> Exit:
        """Return the end of a part with the memory left on its devices; waits while they do not free it."""
        claims = self.returns.concerns(part.intent.folder, part.intent.devices)
        if not claims or end.cause in NEVER_RAN:
            return end
        ended_at = time.monotonic()
        while True:
            await self._sample([claim.uuid for claim in claims])
            told = self.returns.judge(part.intent.part, part.intent.folder, claims, self._shared(part), ended_at)
            waited_s = time.monotonic() - ended_at
            faulty = {error.uuid for error in self.view.conditions(False).device_errors}
            late, blind = waits_for(told), is_blind(told, faulty)
            if waited_s >= (PATIENCE_S if late else BLIND_S if blind else 0.0):
                break
            if part.substate != (late or ""):
                part.substate = late or ""
                self.node.changed.set()
            await asyncio.sleep(AGAIN_S)
        part.substate = ""
        if late:
            self.returns.keep(told)
            log.warning("part %s: %s", part.intent.part, late)
        return msgspec.structs.replace(end, released=told)

    def _shared(self, part: StartedPart) -> set[str]:
        """Return the devices that others use too: other parts, and processes that no stage started."""
        return self._foreign() | {
            claim.uuid for other in self.node.live if other is not part for claim in other.intent.devices
        }

    def _foreign(self) -> set[str]:
        """Return the devices used by processes that no stage started."""
        inventory = self.view.inventory
        listed = inventory.devices if inventory else []
        return {d.uuid for d in listed if "FOREIGN_PROCESS" in d.attributes.get("conditions", "").split(",")}

    def _judge(self, part: str, end: Exit) -> Exit:
        """Return the end of a part with the energy and memory of its devices; if one failed meanwhile, that is the
        cause."""
        drawn = self.energy.joules(part)
        if drawn:
            end = msgspec.structs.replace(end, energy_j=drawn, energy_measured_s=self.energy.measured_s(part))
        if peaks := self.memory.peaks(part):
            end = msgspec.structs.replace(end, device_peak_bytes=peaks)
        if part not in self.node.parts:
            return end
        intent = self.node.parts[part].intent
        if end.cause != "LEASE_EXPIRED" and (over := cap.remembered(intent.folder)):
            return msgspec.structs.replace(end, cause="OUT_OF_MEMORY", stopped=False, **told(over))
        if end.cause != "LEASE_EXPIRED" and (over := disk_use.remembered(intent.folder)):
            return msgspec.structs.replace(end, cause="OUT_OF_DISK", stopped=False, **told(over))
        held = {claim.uuid for claim in intent.devices}
        faults = [error for error in self.view.conditions(False).device_errors if error.uuid in held]
        if faults and end.cause in BLAMED and not end.stopped:
            fault = faults[0]
            failed = clause("DeviceFault", device=fault.uuid, fault=fault.detail or fault.code)
            detail = say((failed,)) + (f"; {end.detail}" if end.detail else "")
            said = [failed, clause("Also"), *end.said] if end.said else [failed] if not end.detail else []
            end = msgspec.structs.replace(end, cause="DEVICE_ERROR", detail=detail, said=said)
        return end

    def _part_samples(self, now: float) -> list[PartSample]:
        samples = []
        after: dict[str, tuple[float, float]] = {}
        for part in self.node.live:
            family = record.family(part.intent.folder) if part.pid else []
            if not family:
                continue
            used_s = procfs.cpu_s(family)
            after[part.intent.part] = (now, used_s)
            then, used_then_s = self._before.get(part.intent.part, (now, used_s))
            cores = max(0.0, used_s - used_then_s) / (now - then) if now > then else None
            samples.append(
                PartSample(
                    part=part.intent.part,
                    age_s=0.0,
                    cpu=None if cores is None else round(cores, 3),
                    rss_bytes=procfs.memory(family),
                    energy_j=self.energy.joules(part.intent.part),
                )
            )
        self._before = after
        return samples

    async def _send(self, host: HostSample | None, newest_only: bool) -> None:
        """Send the stored samples, each with its age; what cannot be sent is dropped."""
        now = time.monotonic()
        devices, parts = list(self._kept), list(self._parts)
        self._kept.clear()
        self._parts.clear()
        if newest_only:
            devices = list({sample.uuid: (at, sample) for at, sample in devices}.values())
            parts = list({sample.part: (at, sample) for at, sample in parts}.values())
        self._batches += 1
        batch = TelemetryBatch(
            devices=[
                msgspec.structs.replace(s, age_s=round(now - at + s.age_s, 3), energy_j=None) for at, s in devices
            ],
            parts=[msgspec.structs.replace(s, age_s=round(now - at, 3)) for at, s in parts],
            host=host,
            fetched=self.node.staging.fetcher.take_transfers() if self.node.staging is not None else [],
            incarnation=self.node.incarnation,
            seq=self._batches,
        )
        try:
            await self.channel.ask("POST", TELEMETRY_PATH, _encode(batch), "application/msgpack")
            self.node.clock = skew.note(self.channel.skew_s)
        except (OSError, http.client.HTTPException, ServerRefused) as error:
            log.debug("telemetry was dropped: %s", error)
