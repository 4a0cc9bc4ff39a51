"""Writes the output of several streams to one terminal, by whole lines and without control sequences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from switchyard.cli import clean

if TYPE_CHECKING:
    from switchyard.logs import Chunk


class Printer:
    """Writes chunks: ``out`` to standard output, ``err`` to standard error.

    With ``prefixed`` every line begins with its stage and, above rank 0, its rank. Escape sequences are removed unless
    ``raw``. If another stream begins while a line is open, that line is ended first.
    """

    def __init__(self, *, prefixed: bool, raw: bool) -> None:
        self._prefixed, self._raw = prefixed, raw
        self._cleaners: dict[tuple[str, int, int, str], clean.CleanStream] = {}
        self._open: tuple[str, int, int, str] | None = None

    def write(self, chunk: Chunk) -> None:
        key = (chunk.stage, chunk.attempt, chunk.rank, chunk.stream)
        text = chunk.text if self._raw else self._cleaners.setdefault(key, clean.CleanStream()).feed(chunk.text)
        if not text:
            return
        to = sys.stderr if chunk.stream == "err" else sys.stdout
        if self._prefixed:
            text = self._with_prefix(key, text, to)
        to.write(text)
        to.flush()

    def _with_prefix(self, key: tuple[str, int, int, str], text: str, to: TextIO) -> str:
        prefix = f"[{clean.line(key[0])}{f'.{key[2]}' if key[2] else ''}] "
        begun = self._open == key
        if self._open is not None and not begun:
            other = sys.stderr if self._open[3] == "err" else sys.stdout
            other.write("\n")
            other.flush()
        self._open = None if text.endswith("\n") else key
        body = text.removesuffix("\n")
        lines = body.split("\n")
        written = "\n".join((line if begun and at == 0 else prefix + line) for at, line in enumerate(lines))
        return written + ("\n" if text.endswith("\n") else "")
