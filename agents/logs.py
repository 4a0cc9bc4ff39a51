"""Ships the parts' output by offset; the file on this host is the truth until the control plane has committed it."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import random
from dataclasses import dataclass

import msgspec

from agents.node import Node, Part
from agents.protocol import LOGS_PATH, LogBatch, LogChunk, LogReceipt
from agents.server import Channel, Server, ServerRefused

log = logging.getLogger("switchyard.agent")

CHUNK_BYTES = 256 << 10
BATCH_BYTES = 1 << 20
LIVE_PERIOD_S = 0.2
REST_PERIOD_S = 5.0
RETRY_MAX_S = 10.0
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(LogReceipt)


@dataclass
class Stream:
    """How far one stream has been shipped. ``is_known`` is false until the server told what it holds."""

    committed: int = 0
    is_known: bool = False
    is_refused: bool = False


class LogShipper:
    """One node's logs. Many parts travel in one batch, in turn, so that a flood of one holds up no other."""

    def __init__(self, node: Node, server: Server) -> None:
        self.node = node
        self.channel = Channel(server)
        self.streams: dict[tuple[str, int, str], Stream] = {}
        self.wake = asyncio.Event()
        self._turn = 0
        node.on_end = lambda part: self.wake.set()
        node.shipped = self.shipped

    def shipped(self, name: str) -> bool:
        """Tells whether nothing of the part is left to ship; afterwards its bookkeeping is dropped."""
        part = self.node.parts.get(name)
        if part is None:
            return True
        keys = [(name, part.intent.rank, stream) for stream in ("out", "err")]
        for key in keys:
            stream = self.streams.get(key, Stream())
            if (
                not stream.is_refused
                and (size := _size(part, key[2]))
                and (not stream.is_known or stream.committed < size)
            ):
                return False
        for key in keys:
            self.streams.pop(key, None)
        return True

    async def run(self) -> None:
        """For ever: ship what is new; after an error again, with growing pauses."""
        pause = LIVE_PERIOD_S
        while True:
            try:
                more = await self._round()
                pause = LIVE_PERIOD_S
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                log.info("logs could not be shipped: %s", error)
                more, pause = False, min(pause * 2, RETRY_MAX_S)
            except ServerRefused as error:
                log.warning("logs could not be shipped: %s", error)
                more, pause = False, RETRY_MAX_S
            if more:
                continue
            self.wake.clear()
            wait = pause if self.node.parts or pause > LIVE_PERIOD_S else REST_PERIOD_S
            if pause > LIVE_PERIOD_S:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                continue
            try:
                await asyncio.wait_for(self.wake.wait(), wait)
            except TimeoutError:
                continue

    async def _round(self) -> bool:
        """Ship one batch; true when there is more at once."""
        chunks = self._collect()
        if not chunks:
            return False
        answer = await self.channel.ask("POST", LOGS_PATH, _encode(LogBatch(chunks)), "application/msgpack")
        moved = False
        for commit in _decoder.decode(answer).streams:
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
        keys = [
            (part, (name, part.intent.rank, stream))
            for name, part in self.node.parts.items()
            for stream in ("out", "err")
        ]
        self._turn = (self._turn + 1) % max(1, len(keys))
        chunks: list[LogChunk] = []
        room = BATCH_BYTES
        for part, key in keys[self._turn :] + keys[: self._turn]:
            if room <= 0:
                break
            chunk = self._next(part, key, min(room, CHUNK_BYTES))
            if chunk is not None:
                chunks.append(chunk)
                room -= len(chunk.data)
        return chunks

    def _next(self, part: Part, key: tuple[str, int, str], room: int) -> LogChunk | None:
        size = _size(part, key[2])
        if not size:
            return None
        stream = self.streams.setdefault(key, Stream())
        if stream.is_refused or (stream.is_known and stream.committed >= size):
            return None
        content = b""
        if stream.is_known or size <= CHUNK_BYTES:
            with open(_path(part, key[2]), "rb") as file:
                content = os.pread(file.fileno(), room, stream.committed)
        return LogChunk(key[0], part.intent.epoch, key[1], key[2], stream.committed, content)


def _path(part: Part, stream: str) -> str:
    return f"{part.intent.folder}/{part.intent.rank}.{stream}"


def _size(part: Part, stream: str) -> int:
    try:
        return os.stat(_path(part, stream)).st_size
    except OSError:
        return 0
