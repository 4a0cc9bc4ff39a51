"""Reads the output of a job's stages, to its end or as it grows."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from switchyard.problem import ApiProblem, Unreachable
from switchyard.record import FINAL
from switchyard.wire import Wire

if TYPE_CHECKING:
    from switchyard.answers import LogStream

CHUNK_BYTES = 256 << 10
POLL_S = (0.3, 2.0)
SETTLE_S = 1.5
"""How long output may still arrive after a job has ended: logs and reports travel on separate roads."""

PATIENCE_S = 600.0
"""How long a follower or a wait outlives an absent control plane; the job itself does not need it."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Selects output; ``None`` means any. Without ``attempt`` it is the newest one, and those that follow it."""

    stage: str | None = None
    attempt: int | None = None
    rank: int | None = 0
    stream: str = "both"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one stream: ``stream`` is ``out`` or ``err``, ``text`` is as the process wrote it."""

    stage: str
    attempt: int
    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A line that has the text: ``offset`` is the first byte of the match in its stream. A long line is cut."""

    stage: str
    attempt: int
    rank: int
    stream: str
    offset: int
    line: str


@dataclass(slots=True)
class _Reader:
    """One stream and how far it was read. An incomplete character at a chunk's end is kept for the next one."""

    stage: str
    attempt: int
    rank: int
    stream: str
    offset: int = 0
    begun: bool = False
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def read(self, wire: Wire, job: str, tail: int | None) -> Iterator[Chunk]:
        while True:
            params: dict[str, Any] = {
                "stage": self.stage,
                "attempt": self.attempt,
                "rank": self.rank,
                "stream": self.stream,
            }
            if tail is not None and not self.begun:
                params["tail"] = tail
            else:
                params |= {"offset": self.offset, "limit": CHUNK_BYTES}
            answer = wire.call("GET", f"/jobs/{job}/logs", params=params)
            told = answer.headers.get("X-Log-Next-Offset")
            before, self.offset = (
                self.offset,
                int(told) if told else self.offset + len(answer.content),
            )
            self.begun = True
            text = self.decoder.decode(answer.content)
            if text:
                yield Chunk(self.stage, self.attempt, self.rank, self.stream, text)
            if not answer.content or self.offset <= before or len(answer.content) < CHUNK_BYTES:
                return


def read(
    wire: Wire,
    job: str,
    wanted: LogQuery,
    *,
    tail: int | None = None,
    follow: bool = False,
) -> Iterator[Chunk]:
    """Yield the output of ``job``, stream after stream; with ``follow``, as it grows, until the job has ended.

    With ``tail`` existing streams begin with their last lines. A stream that appears later is read from its start.
    """
    readers: dict[tuple[str, int, int, str], _Reader] = {}
    floor: dict[str, int] = {}
    first, quiet_s, pause_s, away_s = True, 0.0, POLL_S[0], 0.0
    while True:
        grew = False
        try:
            final = not follow or wire.get(f"/jobs/{job}")["state"] in FINAL
            for reader in _growing(wire, job, wanted, readers, floor):
                for chunk in reader.read(wire, job, tail if first else None):
                    grew = True
                    yield chunk
            away_s = 0.0
        except (Unreachable, ApiProblem) as error:
            if isinstance(error, ApiProblem) and not error.is_passing:
                raise
            # The job goes on without its control plane; so does the follower, for a while.
            if not follow or (first and not readers) or away_s > PATIENCE_S:
                raise
            final, away_s = False, away_s + pause_s
        first = False
        if not follow:
            return
        if final:
            quiet_s = 0.0 if grew else quiet_s + POLL_S[0]
            if quiet_s > SETTLE_S:
                return
        pause_s = POLL_S[0] if grew or final else min(POLL_S[1], pause_s * 1.3)
        time.sleep(pause_s)


def search(wire: Wire, job: str, text: str, wanted: LogQuery, *, ignore_case: bool = False) -> Iterator[LogMatch]:
    """The lines of the wanted streams that contain ``text``, stream after stream; the server looks for them."""
    for reader in _growing(wire, job, wanted, {}, {}):
        where = (reader.stage, reader.attempt, reader.rank, reader.stream)
        key = dict(zip(("stage", "attempt", "rank", "stream"), where, strict=True))
        asked: dict[str, Any] = {**key, "text": text, "ignore_case": ignore_case, "offset": 0}
        is_end = False
        while not is_end:
            answer = wire.get(f"/jobs/{job}/logs/search", asked)
            for one in answer["results"]:
                yield LogMatch(*where, one["offset"], one["line"])
            # A server that does not get on would be asked for ever.
            is_end = answer["is_end"] or answer["next_offset"] <= asked["offset"]
            asked["offset"] = answer["next_offset"]


def streams(wire: Wire, job: str) -> list[LogStream]:
    """Return the log streams of a job: ``stage, attempt, rank, stream, size_bytes``."""
    found: Any = wire.get(f"/jobs/{job}/streams")
    return list(found["results"] if isinstance(found, dict) else found)


def _growing(
    wire: Wire,
    job: str,
    wanted: LogQuery,
    readers: dict[tuple[str, int, int, str], _Reader],
    floor: dict[str, int],
) -> Iterator[_Reader]:
    """Yield the wanted streams that have more than was read."""
    try:
        index = streams(wire, job)
    except ApiProblem as problem:
        if problem.status == 404 and readers:
            return
        raise
    for one in index:
        stage, number = str(one["stage"]), int(one["attempt"])
        floor[stage] = max(floor.get(stage, 0), number) if not readers else floor.get(stage, 0)
    for one in index:
        key = (
            str(one["stage"]),
            int(one["attempt"]),
            int(one["rank"]),
            str(one["stream"]),
        )
        stage, number, rank, stream = key
        if (
            wanted.stage not in (None, stage)
            or wanted.rank not in (None, rank)
            or wanted.stream not in ("both", stream)
        ):
            continue
        if (wanted.attempt or number) != number or (wanted.attempt is None and number < floor[stage]):
            continue
        reader = readers.setdefault(key, _Reader(*key))
        if int(one.get("size_bytes") or 0) > reader.offset:
            yield reader
