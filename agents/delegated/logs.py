"""Copies the streams of a foreign job into the run folder, by offset, where its engine shares no folder with the
agent.

``copied.json`` has how far each stream was read, which is written after the bytes: a new agent cuts the file to what
was noted, and reads on from there. Secrets are masked as the supervisor of a process would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import msgspec

from agents.decode import BoundedDecoder
from agents.delegated import DelegatedEngine, ForeignJob, ForeignOrder
from agents.masking import Mask
from agents.protocol import Counter
from agents.supervisor.record import read_whole, write_all, write_whole

PIECE_BYTES: Final = 256 << 10
PIECES_A_TURN: Final = 8
STREAMS: Final = ("out", "err")


class CopiedStream(msgspec.Struct, frozen=True):
    """How far a stream was read at the engine, and how long the file here was then."""

    read: Counter = 0
    written: Counter = 0


_noted = BoundedDecoder[dict[str, CopiedStream]](dict[str, CopiedStream])


@dataclass
class _Stream:
    path: str
    read: int
    written: int
    mask: Mask


class LogCopy:
    """The streams of one part."""

    def __init__(self, folder: str, rank: int, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        noted = _noted.find(f"{folder}/copied.json") or {}
        secrets = (read_whole(f"{folder}/secrets.json") or {}).get("mask", ())
        self.streams: dict[str, _Stream] = {}
        for name in STREAMS:
            at = noted.get(name, CopiedStream())
            path = f"{folder}/{rank}.{name}"
            if os.path.exists(path):
                os.truncate(path, min(at.written, os.path.getsize(path)))
            mask = Mask([str(each) for each in secrets])
            self.streams[name] = _Stream(path, at.read, at.written, mask)

    def turn(self, engine: DelegatedEngine, job: ForeignJob, order: ForeignOrder) -> bool:
        """Copy what is new, up to some pieces; return whether that was all that there is now."""
        is_all = True
        for name, stream in self.streams.items():
            for _ in range(PIECES_A_TURN):
                piece = engine.read(job, order, name, stream.read, PIECE_BYTES)
                if not piece:
                    break
                self._keep(stream, stream.mask.feed(piece))
                stream.read += len(piece)
                self._note()
            else:
                is_all = False
        return is_all

    def finish(self, engine: DelegatedEngine, job: ForeignJob, order: ForeignOrder) -> bool:
        """Copy the rest after the end; return whether nothing is left."""
        if not self.turn(engine, job, order):
            return False
        for stream in self.streams.values():
            self._keep(stream, stream.mask.end())
        self._note()
        return True

    def _keep(self, stream: _Stream, content: bytes) -> None:
        content = content[: max(0, self.most_bytes - stream.written)]
        if not content:
            return
        file = os.open(stream.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            write_all(file, content)
        finally:
            os.close(file)
        stream.written += len(content)

    def _note(self) -> None:
        # What the mask holds back is read again by the next agent.
        told = {
            name: {"read": stream.read - stream.mask.held_back, "written": stream.written}
            for name, stream in self.streams.items()
        }
        write_whole(f"{self.folder}/copied.json", told)
