"""Samples devices and parts, once a second while anything runs and seldom at rest; the newest wins, nothing is kept."""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
import time

import msgspec

from agents import procfs
from agents.host import HostView
from agents.link import Link
from agents.node import Node
from agents.protocol import TELEMETRY_PATH, DeviceSample, PartSample, TelemetryBatch
from agents.record import read_whole
from agents.server import Channel, Server, ServerRefused

log = logging.getLogger("switchyard.agent")

REST_PERIOD_S = 5.0
LOOK_AGAIN_S = 60.0
_encode = msgspec.msgpack.Encoder().encode


class Meter:
    """One node's telemetry; it also looks for devices again from time to time."""

    def __init__(self, node: Node, view: HostView, link: Link, server: Server) -> None:
        self.node = node
        self.view = view
        self.link = link
        self.channel = Channel(server)
        self._before: dict[str, tuple[float, float]] = {}

    async def run(self) -> None:
        """For ever."""
        looked_at = time.monotonic()
        while True:
            await self._pause()
            before = self.view.conditions(False)
            if time.monotonic() - looked_at > LOOK_AGAIN_S:
                looked_at = time.monotonic()
                if await asyncio.to_thread(self.view.look):
                    self.link.inventory_changed()
            claims = [claim for part in self.node.live for claim in part.intent.devices]
            devices = await asyncio.to_thread(self.view.sample, claims)
            if self.view.conditions(False) != before:
                # A fault seen while sampling changes a device's health: look again with the next round.
                looked_at = 0.0
                self.node.changed.set()
            await self._send(devices, self._parts())

    async def _pause(self) -> None:
        """Wait for the next sample: a short while if anything runs, a long one at rest, cut short by a start."""
        rest_until = time.monotonic() + REST_PERIOD_S * random.uniform(0.9, 1.1)
        await asyncio.sleep(self.node.timers.telemetry_s * random.uniform(0.9, 1.1))
        while not self.node.live and time.monotonic() < rest_until:  # noqa: ASYNC110 - cheaper than an event per start
            await asyncio.sleep(1.0)

    def _parts(self) -> list[PartSample]:
        now = time.monotonic()
        samples = []
        after: dict[str, tuple[float, float]] = {}
        for part in self.node.live:
            record = read_whole(f"{part.intent.folder}/shim.json") if part.pid else None
            if not record:
                continue
            family = procfs.descendants(record["pid"])
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
                )
            )
        self._before = after
        return samples

    async def _send(self, devices: list[DeviceSample], parts: list[PartSample]) -> None:
        try:
            body = _encode(TelemetryBatch(devices=devices, parts=parts))
            await self.channel.ask("POST", TELEMETRY_PATH, body, "application/msgpack")
        except (OSError, http.client.HTTPException, ServerRefused) as error:
            log.debug("telemetry was dropped: %s", error)
