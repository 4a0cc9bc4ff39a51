"""The asynchronous twin of ``switchyard.logs``.

Made by switchyard/packaging/twin.py from switchyard/logs.py; change it there.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from switchyard.aio.wire import AsyncWire
from switchyard.logs import CHUNK_BYTES, PATIENCE_S, POLL_S, SETTLE_S, Chunk, LogMatch, LogQuery
from switchyard.problem import ApiProblem, Unreachable
from switchyard.record import FINAL

if TYPE_CHECKING:
    from switchyard.answers import LogStream


@dataclass(slots=True)
class _AsyncReader:
    """One stream and how far it was read. An incomplete character at a chunk's end is kept for the next one."""

    stage: str
    attempt: int
    rank: int
    stream: str
    offset: int = 0
    begun: bool = False
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    async def read(self, wire: AsyncWire, job: str, tail: int | None) -> AsyncIterator[Chunk]:
        while True:
            params: dict[str, Any] = {
                "stage": self.stage,
                "attempt": self.attempt,
                "rank": self.rank,
                "stream": self.stream,
            }
            if tail is not None and (not self.begun):
                params["tail"] = tail
            else:
                params |= {"offset": self.offset, "limit": CHUNK_BYTES}
            answer = await wire.call("GET", f"/jobs/{job}/logs", params=params)
            told = answer.headers.get("X-Log-Next-Offset")
            before, self.offset = (self.offset, int(told) if told else self.offset + len(answer.content))
            self.begun = True
            text = self.decoder.decode(answer.content)
            if text:
                yield Chunk(self.stage, self.attempt, self.rank, self.stream, text)
            if not answer.content or self.offset <= before or len(answer.content) < CHUNK_BYTES:
                return


async def read(
    wire: AsyncWire, job: str, wanted: LogQuery, *, tail: int | None = None, follow: bool = False
) -> AsyncIterator[Chunk]:
    """Yield the output of ``job``, stream after stream; with ``follow``, as it grows, until the job has ended.

    With ``tail`` existing streams begin with their last lines. A stream that appears later is read from its start.
    """
    readers: dict[tuple[str, int, int, str], _AsyncReader] = {}
    floor: dict[str, int] = {}
    first, quiet_s, pause_s, away_s = (True, 0.0, POLL_S[0], 0.0)
    while True:
        grew = False
        try:
            final = not follow or (await wire.get(f"/jobs/{job}"))["state"] in FINAL
            async for reader in _growing(wire, job, wanted, readers, floor):
                async for chunk in reader.read(wire, job, tail if first else None):
                    grew = True
                    yield chunk
            away_s = 0.0
        except (Unreachable, ApiProblem) as error:
            if isinstance(error, ApiProblem) and (not error.is_passing):
                raise
            if not follow or (first and (not readers)) or away_s > PATIENCE_S:
                raise
            final, away_s = (False, away_s + pause_s)
        first = False
        if not follow:
            return
        if final:
            quiet_s = 0.0 if grew else quiet_s + POLL_S[0]
            if quiet_s > SETTLE_S:
                return
        pause_s = POLL_S[0] if grew or final else min(POLL_S[1], pause_s * 1.3)
        await asyncio.sleep(pause_s)


async def search(
    wire: AsyncWire, job: str, text: str, wanted: LogQuery, *, ignore_case: bool = False
) -> AsyncIterator[LogMatch]:
    """The lines of the wanted streams that contain ``text``, stream after stream; the server looks for them."""
    async for reader in _growing(wire, job, wanted, {}, {}):
        where = (reader.stage, reader.attempt, reader.rank, reader.stream)
        key = dict(zip(("stage", "attempt", "rank", "stream"), where, strict=True))
        asked: dict[str, Any] = {**key, "text": text, "ignore_case": ignore_case, "offset": 0}
        is_end = False
        while not is_end:
            answer = await wire.get(f"/jobs/{job}/logs/search", asked)
            for one in answer["results"]:
                yield LogMatch(*where, one["offset"], one["line"])
            is_end = answer["is_end"] or answer["next_offset"] <= asked["offset"]
            asked["offset"] = answer["next_offset"]


async def streams(wire: AsyncWire, job: str) -> list[LogStream]:
    """Return the log streams of a job: ``stage, attempt, rank, stream, size_bytes``."""
    found: Any = await wire.get(f"/jobs/{job}/streams")
    return list(found["results"] if isinstance(found, dict) else found)


async def _growing(
    wire: AsyncWire,
    job: str,
    wanted: LogQuery,
    readers: dict[tuple[str, int, int, str], _AsyncReader],
    floor: dict[str, int],
) -> AsyncIterator[_AsyncReader]:
    """Yield the wanted streams that have more than was read."""
    try:
        index = await streams(wire, job)
    except ApiProblem as problem:
        if problem.status == 404 and readers:
            return
        raise
    for one in index:
        stage, number = (str(one["stage"]), int(one["attempt"]))
        floor[stage] = max(floor.get(stage, 0), number) if not readers else floor.get(stage, 0)
    for one in index:
        key = (str(one["stage"]), int(one["attempt"]), int(one["rank"]), str(one["stream"]))
        stage, number, rank, stream = key
        if (
            wanted.stage not in (None, stage)
            or wanted.rank not in (None, rank)
            or wanted.stream not in ("both", stream)
        ):
            continue
        if (wanted.attempt or number) != number or (wanted.attempt is None and number < floor[stage]):
            continue
        reader = readers.setdefault(key, _AsyncReader(*key))
        if int(one.get("size_bytes") or 0) > reader.offset:
            yield reader
