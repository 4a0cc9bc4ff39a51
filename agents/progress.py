"""What a stage tells of itself: newest values and checkpoints, from the file that ``switchyard.runtime`` appends to."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Final

from agents.beneath import regular
from agents.procfs import boottime
from agents.protocol import Checkpoint, Progress

KEEP_CHECKPOINTS: Final = 3
_READ_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 32
_MAX_TEXT: Final = 200


class ReportFile:
    """Follows one report file. The job writes it, so nothing in it is trusted: odd lines are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress: Progress | None = None
        self._checkpoints: list[tuple[int, str, float]] = []
        self._offset = 0
        self._rest = b""
        self._step: int | None = None
        self._total: int | None = None
        self._phase = ""
        self._values: dict[str, float | int | str] = {}

    def poll(self) -> bool:
        """Read what was appended; true when something new was told."""
        try:
            descriptor = regular(str(self.path))
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_size <= self._offset:
                return False
            if status.st_size - self._offset > 8 * _READ_BYTES:
                self._offset, self._rest = status.st_size - _READ_BYTES, b""
            content = os.pread(descriptor, _READ_BYTES, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[:_READ_BYTES]
        written_at = boottime() - max(0.0, time.time() - status.st_mtime)
        told = [self._take(line, written_at) for line in lines]
        if not any(told):
            return False
        self.progress = Progress(self._step, self._total, self._phase, dict(self._values))
        return True

    @property
    def checkpoints(self) -> list[Checkpoint]:
        now = boottime()
        return [Checkpoint(step, path, round(max(0.0, now - at), 3)) for step, path, at in self._checkpoints]

    def _take(self, line: bytes, written_at: float) -> bool:
        try:
            word = json.loads(line)
        except ValueError:
            return False
        if not isinstance(word, dict):
            return False
        known = False
        if isinstance(report := word.get("report"), dict):
            known = True
            self._step = _whole(report.get("step"), self._step)
            self._total = _whole(report.get("total"), self._total)
            self._take_values(report.get("values"))
        if isinstance(phase := word.get("phase"), dict):
            known = True
            self._phase = str(phase.get("name", ""))[:_MAX_TEXT]
        if isinstance(checkpoint := word.get("checkpoint"), dict) and isinstance(checkpoint.get("path"), str):
            known = True
            step = _whole(checkpoint.get("step"), 0) or 0
            self._checkpoints.append((step, checkpoint["path"][:4096], written_at))
            del self._checkpoints[:-KEEP_CHECKPOINTS]
        return known

    def _take_values(self, values: object) -> None:
        if not isinstance(values, dict):
            return
        for name, value in values.items():
            if len(self._values) >= _MAX_VALUES and name not in self._values:
                continue
            if isinstance(value, str):
                self._values[str(name)[:64]] = value[:_MAX_TEXT]
            elif isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63:
                self._values[str(name)[:64]] = value


def _whole(value: object, otherwise: int | None) -> int | None:
    if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63:
        return int(value)
    return otherwise
