"""Ships the output of parts by offset; the file on this host is authoritative until the control plane has committed
it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import random
from dataclasses import dataclass

import msgspec

from agents.decode import BoundedDecoder, Undecodable
from agents.isolation.beneath import regular
from agents.link.server import Channel, Server, ServerRefused
from agents.patience import within
from agents.protocol import LOGS_PATH, LogBatch, LogChunk, LogReceipt
from agents.tasks.node import NodeTasks
from agents.tasks.part import StartedPart

log = logging.getLogger("switchyard.agent")

CHUNK_BYTES = 256 << 10
BATCH_BYTES = 4 << 20
LIVE_PERIOD_S = 0.2
WEAK_PERIOD_S = 5.0
REST_PERIOD_S = 5.0
RETRY_MAX_S = 10.0
_encode = msgspec.msgpack.Encoder().encode
_receipts = BoundedDecoder[LogReceipt](LogReceipt, packed=True)


@dataclass
class ShippedStream:
    """How far one stream has been shipped. ``is_known`` is false until the server told how much it has."""

    committed: int = 0
    is_known: bool = False
    is_refused: bool = False


class LogShipper:
    """The logs of one node. Each batch has chunks of many parts in turn, so that a flood from one delays no other."""

    def __init__(self, node: NodeTasks, server: Server) -> None:
        self.node = node
        self.channel = Channel(server)
        self.streams: dict[tuple[str, int, str], ShippedStream] = {}
        self.wake = asyncio.Event()
        self.period_s = LIVE_PERIOD_S
        self._turn = 0
        node.on_end = lambda part: self.wake.set()
        node.shipped = self.shipped

    def shipped(self, name: str) -> bool:
        """Whether nothing of the part is left to ship; its state is then dropped."""
        part = self.node.parts.get(name)
        if part is None:
            return True
        rank, sizes = part.intent.rank, part.log_sizes()
        for kind in ("out", "err"):
            stream = self.streams.get((name, rank, kind), ShippedStream())
            size = sizes.get(f"{rank}.{kind}", 0)
            if not stream.is_refused and size and (not stream.is_known or stream.committed < size):
                return False
        for kind in ("out", "err"):
            self.streams.pop((name, rank, kind), None)
        return True

    def renew(self, name: str) -> None:
        """Ship a part's streams from the offset that the control plane tells, whatever it told before."""
        for key in [key for key in self.streams if key[0] == name]:
            del self.streams[key]
        self.wake.set()

    async def run(self) -> None:
        """Ship new output for ever; after an error again, with growing pauses."""
        pause = self.period_s
        while True:
            try:
                more = await self._round()
                pause = self.period_s
            except (OSError, http.client.HTTPException, Undecodable) as error:
                log.info("logs could not be shipped: %s", error)
                more, pause = False, min(pause * 2, RETRY_MAX_S)
            except ServerRefused as error:
                log.warning("logs could not be shipped: %s", error)
                more, pause = False, RETRY_MAX_S
            if more:
                continue
            self.wake.clear()
            wait = pause if self.node.parts or pause > self.period_s else REST_PERIOD_S
            if pause > self.period_s:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                continue
            await within(self.wake, wait)

    async def _round(self) -> bool:
        """Ship one batch; return whether there is more."""
        chunks = self._collect()
        if not chunks:
            return False
        answer = await self.channel.ask(
            "POST", LOGS_PATH, _encode(LogBatch(chunks, self.node.incarnation)), "application/msgpack"
        )
        moved = False
        for commit in _receipts.read(answer).streams:
            stream = self.streams.get((commit.part, commit.rank, commit.stream))
            if stream is None:
                continue
            moved |= commit.committed > stream.committed or not stream.is_known
            stream.committed, stream.is_known = commit.committed, True
            if commit.refused:
                stream.is_refused = True
                log.info("the control plane takes no more logs of part %s: %s", commit.part, commit.refused)
        return moved

    def _collect(self) -> list[LogChunk]:
        """Return what fits into one batch: a chunk of each stream in turn, and again of those that have more."""
        behind = self._behind()
        self._turn = (self._turn + 1) % max(1, len(behind))
        behind = behind[self._turn :] + behind[: self._turn]
        chunks: list[LogChunk] = []
        room = BATCH_BYTES
        while behind and room > 0:
            more = []
            for part, name, offset, size in behind:
                if room <= 0:
                    break
                chunk = self._read(part, name, offset, min(room, CHUNK_BYTES, size - offset))
                chunks.append(chunk)
                room -= len(chunk.data)
                if chunk.data and (reached := offset + len(chunk.data)) < size:
                    more.append((part, name, reached, size))
            behind = more
        return chunks

    def _behind(self) -> list[tuple[StartedPart, str, int, int]]:
        """Return the streams with something to ship: the offset to continue at, and the size until which to ship."""
        found = []
        for name, part in self.node.parts.items():
            if self.node.is_withheld(name):
                continue
            sizes = part.log_sizes()
            for kind in ("out", "err"):
                size = sizes.get(f"{part.intent.rank}.{kind}", 0)
                if not size:
                    continue
                stream = self.streams.setdefault((name, part.intent.rank, kind), ShippedStream())
                if not stream.is_refused and (not stream.is_known or stream.committed < size):
                    # The offset of a long stream is requested first, with an empty chunk.
                    is_asked = not stream.is_known and size > CHUNK_BYTES
                    found.append((part, kind, stream.committed, stream.committed if is_asked else size))
        return found

    @staticmethod
    def _read(part: StartedPart, kind: str, offset: int, room: int) -> LogChunk:
        intent = part.intent
        data = b""
        if room > 0:
            with contextlib.suppress(OSError):  # a missing file must not delay the others
                descriptor = regular(f"{intent.folder}/{intent.rank}.{kind}")
                try:
                    data = os.pread(descriptor, room, offset)
                finally:
                    os.close(descriptor)
        return LogChunk(intent.part, intent.epoch, intent.rank, kind, offset, data)
