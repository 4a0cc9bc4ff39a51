"""A worker's handle of the process that answers people's questions to the engine, one after the other.

The process is started with the first question. If an answer takes too long the process is killed, and the next question
starts another.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
from django.conf import settings

from controlplane.whatif.messages import LARGEST_ANSWER_BYTES, LONGEST_S, AskedQuestion, Reply

LOOK_S: Final = 2.0


class NoAnswer(Exception):
    """Raised if the process gives no answer; the message says why."""


class Thinker:
    """The handle. It processes one question at a time; other threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def think(
        self, name: str, params: dict[str, Any], language: str, while_it_does: Callable[[], None] = lambda: None
    ) -> Reply:
        """Return the reply to a question; ``while_it_does`` is called every :data:`LOOK_S` until it is there.

        Raises :class:`NoAnswer` if the process ended or took too long.
        """
        question = msgspec.json.encode(AskedQuestion(name, params, language))
        while not self._lock.acquire(timeout=LOOK_S):
            while_it_does()
        try:
            try:
                line = self._ready()
                line.send_bytes(question)
                until = time.monotonic() + LONGEST_S
                while not line.poll(max(0.0, min(LOOK_S, until - time.monotonic()))):
                    if time.monotonic() >= until:
                        raise NoAnswer(f"it takes longer than {LONGEST_S} s")
                    while_it_does()
                return msgspec.json.decode(line.recv_bytes(LARGEST_ANSWER_BYTES + 1024), type=Reply)
            except (OSError, EOFError) as error:
                self._end()
                raise NoAnswer("the process that thought about it ended") from error
            except BaseException:
                self._end()  # else its reply would be read as the reply to the next question
                raise
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Kill the process, from another thread; whoever waits for its reply gets :class:`NoAnswer`."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ready(self) -> Connection:
        if self._process is not None and self._line is not None and self._process.poll() is None:
            return self._line
        self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "controlplane.whatif.process", str(theirs.fileno())],
                cwd="/",  # nothing is imported from a working folder that others may write
                stdin=subprocess.DEVNULL,
                env={**os.environ, "YARD_DB_POOL": "0", "PYTHONPATH": str(settings.BASE_DIR)},
                pass_fds=[theirs.fileno()],
            )
        self._line = Connection(ours.detach())
        return self._line

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None


thinker = Thinker()
