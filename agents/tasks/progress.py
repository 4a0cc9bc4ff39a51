"""Reads what a stage reports: newest values and checkpoints, from the file that ``switchyard.runtime`` appends to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from agents.decode import count, mapping, number, path_text, words
from agents.isolation.beneath import regular
from agents.protocol import Checkpoint, Progress
from agents.supervisor.procfs import boottime

KEEP_CHECKPOINTS: Final = 3
_READ_BYTES: Final = 1 << 20
_LONGEST_LINE: Final = 64 << 10
_BEHIND_BYTES: Final = 8 << 20
# The most lines that one poll evaluates, the newest; nobody could follow a stage that writes more.
_MOST_LINES: Final = 500
_WORDS: Final = (b'"report"', b'"phase"', b'"checkpoint"', b'"setup"')
_MAX_VALUES: Final = 32
_MAX_TEXT: Final = 200
_MAX_NAME: Final = 64
_LONGEST_S: Final = 366 * 86_400.0


class ReportFile:
    """Follows one report file. The job writes it, so nothing in it is trusted: invalid lines are skipped.

    ``failed_setup`` is the exit code of its setup, if that failed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress: Progress | None = None
        self.failed_setup: int | None = None
        self._checkpoints: list[tuple[int, str, float, float | None]] = []
        self._offset = 0
        self._rest = b""
        self._step: int | None = None
        self._total: int | None = None
        self._phase = ""
        self._values: dict[str, float | int | str] = {}
        self._values_at: dict[str, int] = {}

    def poll(self) -> bool:
        """Read what was appended; return True if it has news."""
        try:
            descriptor = regular(str(self.path))
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_size <= self._offset:
                return False
            if status.st_size - self._offset > _BEHIND_BYTES:
                self._offset, self._rest = status.st_size - _READ_BYTES, b""
            content = os.pread(descriptor, _READ_BYTES, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[:_READ_BYTES]
        written_at = boottime() - max(0.0, time.time() - status.st_mtime)
        telling = [line for line in lines if len(line) <= _LONGEST_LINE and any(word in line for word in _WORDS)]
        told = [self._take(line, written_at) for line in telling[-_MOST_LINES:]]
        if not any(told):
            return False
        earlier = {name: at for name, at in self._values_at.items() if at != (self._step or 0)}
        self.progress = Progress(self._step, self._total, self._phase, dict(self._values), earlier)
        return True

    def finish(self) -> None:
        """Read the rest, within bounds, after the last line was appended."""
        for _ in range(_BEHIND_BYTES // _READ_BYTES):
            before = self._offset
            self.poll()
            if self._offset == before:
                return

    @property
    def checkpoints(self) -> list[Checkpoint]:
        now = boottime()
        return [
            Checkpoint(step, path, round(max(0.0, now - at), 3), took_s) for step, path, at, took_s in self._checkpoints
        ]

    def _take(self, line: bytes, written_at: float) -> bool:
        word = mapping(line)
        known = False
        if isinstance(report := word.get("report"), dict):
            known = True
            self._step = _newer(report.get("step"), self._step)
            self._total = _newer(report.get("total"), self._total)
            self._take_values(report.get("values"), report.get("values_at"))
        if isinstance(phase := word.get("phase"), dict):
            known = True
            self._phase = words(phase.get("name"), _MAX_TEXT)
        if isinstance(checkpoint := word.get("checkpoint"), dict) and (place := path_text(checkpoint.get("path"))):
            known = True
            took_s = number(checkpoint.get("took_s"))
            self._checkpoints.append((count(checkpoint.get("step")) or 0, place, written_at, _span(took_s)))
            del self._checkpoints[:-KEEP_CHECKPOINTS]
        if isinstance(setup := word.get("setup"), dict):
            self.failed_setup = count(setup.get("code"))
        return known

    def _take_values(self, values: object, values_at: object) -> None:
        if not isinstance(values, dict):
            return
        steps = values_at if isinstance(values_at, dict) else {}
        for told, value in values.items():
            name = words(told, _MAX_NAME)
            if not name or (len(self._values) >= _MAX_VALUES and name not in self._values):
                continue
            if isinstance(value, str):
                self._values[name] = words(value, _MAX_TEXT)
            elif isinstance(value, bool):
                self._values[name] = int(value)
            elif (found := number(value)) is not None:
                self._values[name] = found
            else:
                continue
            at = count(steps.get(told))
            self._values_at[name] = (self._step or 0) if at is None else at


def _span(value: float | None) -> float | None:
    """Return a reported duration in seconds; None if it is not a number of seconds, or longer than a year."""
    return float(value) if value is not None and 0 <= value <= _LONGEST_S else None


def _newer(value: object, otherwise: int | None) -> int | None:
    found = count(value)
    return otherwise if found is None else found
