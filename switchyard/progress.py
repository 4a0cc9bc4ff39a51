"""Shows how far a job is: a bar that is drawn again in its line on a terminal, else a line for each change of state."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from switchyard.record import JobFields

WIDTH = 30


class ProgressLine:
    """Draws to ``stream`` (default: standard error); draws nothing unless ``is_shown``."""

    def __init__(self, is_shown: bool = True, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_shown, self._drawn = is_shown, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the line, so that what follows begins at its start."""
        if self._drawn and self._stream.isatty():
            print(file=self._stream, flush=True)

    def show(self, job: JobFields) -> None:
        """Draw the job if it has changed since."""
        if not self._is_shown:
            return
        on_terminal = self._stream.isatty()
        text = f"job {job.number} {job.state}"
        if on_terminal and (done := 1.0 if job.state == "COMPLETED" else job.progress) is not None:
            text = f"job {job.number} [{'#' * round(done * WIDTH):<{WIDTH}}] {done:4.0%} {job.state}"
        if text != self._drawn:
            print(
                f"\r\x1b[K{text}" if on_terminal else text,
                end="" if on_terminal else "\n",
                file=self._stream,
                flush=True,
            )
            self._drawn = text
