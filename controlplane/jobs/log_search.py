"""Searches a log for a text, so many bytes and so long at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# One search looks at no more bytes, and takes no longer where they come slowly; the next goes on from there.
SCAN_BYTES: Final = 64 * 2**20
SCAN_S: Final = 0.25
PIECE_BYTES: Final = 256 * 1024
# Of a line so many bytes before and after the match are answered.
BEFORE_BYTES: Final = 200
AFTER_BYTES: Final = 800

Read = Callable[[int, int], bytes]
"""Returns bytes from one offset up to another, perhaps fewer; none only at the end."""


@dataclass(frozen=True, slots=True)
class Match:
    """The first match in a line: where it begins, and the line, which is cut on either side where it is long."""

    offset: int
    line_offset: int
    line: bytes
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """What one search found, where the next begins, and whether all bytes were looked at."""

    found: list[Match]
    next_offset: int
    is_end: bool


def scan(
    read: Read, size: int, needle: bytes, begin: int, most: int, *, ignore_case: bool = False, longest_s: float = SCAN_S
) -> Scan:
    """Return the first ``most`` matches that begin at ``begin`` or after it, one for each line.

    ``ignore_case`` is about the letters of ASCII. A needle of which only a beginning is there at the end of the log is
    found by the next search, once the rest is there.
    """
    until, late = min(size, begin + SCAN_BYTES), time.monotonic() + longest_s
    base = max(0, begin - BEFORE_BYTES - 1)
    text = _Text(read, base, ignore_case=ignore_case)
    text.grow(min(begin, size))
    wanted = needle.lower() if ignore_case else needle
    at, found = begin, list[Match]()
    while text.grow(min(until, text.end + PIECE_BYTES)):
        while (offset := text.find(wanted, at)) >= 0:
            text.grow(min(size, offset + len(needle) + AFTER_BYTES + 1))
            match = text.line_at(offset, len(needle))
            found.append(match)
            at = match.line_offset + len(match.line)
            if len(found) == most:
                return Scan(found, at, at >= size)
        at = max(at, text.end - len(needle) + 1)
        text.drop(at - BEFORE_BYTES - 1)
        if time.monotonic() > late:
            break
    return Scan(found, at, text.end >= size)


class _Text:
    """A stretch of a log, from ``begin`` up to ``end``."""

    def __init__(self, read: Read, begin: int, *, ignore_case: bool) -> None:
        self.begin = begin
        self._read = read
        self._ignore_case = ignore_case
        self._bytes = bytearray()
        self._folded = bytearray() if ignore_case else self._bytes

    @property
    def end(self) -> int:
        return self.begin + len(self._bytes)

    def grow(self, end: int) -> bool:
        """Read on up to ``end``; tell whether anything came."""
        before = self.end
        while self.end < end and (more := self._read(self.end, end)):
            self._bytes += more
            if self._ignore_case:
                self._folded += more.lower()
        return self.end > before

    def drop(self, until: int) -> None:
        """Forget what lies before an offset."""
        passed = min(until - self.begin, len(self._bytes))
        if passed > 0:
            del self._bytes[:passed]
            if self._ignore_case:
                del self._folded[:passed]
            self.begin += passed

    def find(self, wanted: bytes, at: int) -> int:
        """Return the offset of the first match at ``at`` or after it; -1 if there is none."""
        i = self._folded.find(wanted, at - self.begin)
        return -1 if i < 0 else self.begin + i

    def line_at(self, offset: int, length: int) -> Match:
        """Return the line of a match."""
        i = offset - self.begin
        first, last = self._bytes.rfind(b"\n", 0, i) + 1, self._bytes.find(b"\n", i + length)
        last = len(self._bytes) if last < 0 else last
        start, end = max(first, i - BEFORE_BYTES), min(last, i + length + AFTER_BYTES)
        return Match(offset, self.begin + start, bytes(self._bytes[start:end]), (start, end) != (first, last))
