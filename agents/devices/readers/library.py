"""Runs a vendor's library in a process of its own, behind a pipe and with a deadline, so that a wedged driver blocks
nobody.

The reader's module has ``answer(question) -> dict``. Question and answer are JSON, a line each. A reader that does not
answer in time is killed and started again with the next question; one that a driver holds in the kernel is abandoned.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from agents.decode import parse
from agents.ends import clause
from agents.notes import NoteText

_MOST_BYTES: Final = 16 << 20

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
answer = import_module(sys.argv[2]).answer
for line in sys.stdin:
    print(json.dumps(answer(line.strip())), flush=True)
"""


class ReaderSilent(Exception):
    """The reader did not answer in time, or ended; ``note`` says so."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class NothingToTell(ReaderSilent):
    """The library exists but knows no card: another source may."""


class VendorProcess:
    """The process of one reader, started with the first question. Used by one thread at a time."""

    def __init__(self, module: str, library: str) -> None:
        self.module = module
        self.library = library
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process runs, which may hold handles of the driver."""
        return self._process is not None and self._process.poll() is None

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[3])
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, root, self.module],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def ask(self, question: str, deadline_s: float) -> dict[str, Any]:
        """Return the reader's answer. Raises ReaderSilent; never blocks longer than the deadline."""
        if not self.is_running:
            self._process = self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        until = time.monotonic() + deadline_s
        received = b""
        try:
            process.stdin.write(question.encode() + b"\n")
            while not received.endswith(b"\n"):
                left = until - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    raise ReaderSilent(NoteText(clause("NoAnswer", source=self.library, deadline_s=deadline_s)))
                piece = process.stdout.read(65536)
                if not piece:
                    raise ReaderSilent(NoteText(clause("ReaderEnded", source=self.library, code=process.wait(1))))
                received += piece
                if len(received) > _MOST_BYTES:
                    raise ReaderSilent(NoteText(clause("AnswerTooLong", source=self.library, most_bytes=_MOST_BYTES)))
            answer = parse(received)
            if not isinstance(answer, dict):
                raise ReaderSilent(NoteText(clause("AnswerNoObject", source=self.library)))
        except (ReaderSilent, OSError, ValueError, subprocess.TimeoutExpired) as error:
            self.close()
            if isinstance(error, ReaderSilent):
                raise
            raise ReaderSilent(NoteText(clause("ReaderFailed", source=self.library, error=str(error)))) from error
        return answer

    def close(self) -> None:
        """End the reader, without waiting for one that the kernel does not release."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            return
