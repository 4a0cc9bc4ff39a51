"""The launcher's side of a local stack: starts the keeper, reads its events, and ends it.

The two processes watch each other. The keeper leads its own session, so a Ctrl-C in the terminal reaches the launcher
alone, which then ends the stack in order.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any, Self

from deploy.local.home import Home
from deploy.local.options import Options
from deploy.local.service import importing, open_log, python
from deploy.local.stages import stop_stages
from deploy.local.waiter import STOP_SIGNALS

STOP_PATIENCE_S = 100.0
# The environment of the keeper and all parts, for libraries that read it when they are loaded. Threads on many cores
# would keep an arena of freed memory each; no part multiplies matrices that need threads.
FOR_ALL = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}


class Interrupted(Exception):
    """The person pressed Ctrl-C, or the launcher got SIGTERM or SIGHUP."""


class NotUp(Exception):
    """The stack did not come up; the message says why."""


def interrupt_on_signals() -> None:
    """Raise :class:`Interrupted` in the main thread at the first signal; ignore later ones."""

    def interrupt(*_: object) -> None:
        ignore_signals()
        raise Interrupted

    # Also where a shell started this in the background and ignored them: a stack must be stoppable. Not SIGHUP:
    # "nohup" is how one asks to stay.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupt)


def ignore_signals() -> None:
    """Ignore further signals while the launcher exits."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals during the block; one that came meanwhile raises :class:`Interrupted` at its end."""
    came = []
    heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        ignore_signals()
        raise Interrupted


@dataclass(frozen=True)
class Access:
    """The access to a running stack. ``sign_in`` works once; ``missing`` names the nodes that accept no work yet."""

    url: str
    sign_in: str
    token: str
    took_s: float | None = None
    missing: tuple[str, ...] = ()


class Stack:
    """A stack that runs while this object is entered; use it from the main thread only."""

    def __init__(self, home: Home, options: Options) -> None:
        self._home = home
        self._options = options
        self._keeper: subprocess.Popen[bytes] | None = None
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # Interrupted between fork and assignment, it would leave a keeper that nobody waits for.
            with uninterrupted():
                self._keeper = self._start_keeper()
            assert self._keeper.stdout is not None
            threading.Thread(target=self._listen, args=(self._keeper.stdout,), daemon=True).start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        log = open_log(self._home.path / "keeper.log")
        try:
            return subprocess.Popen(
                python("-m", "deploy.local", "keep", json.dumps(asdict(self._options))),
                env=importing({**os.environ, **FOR_ALL, "YARD_HOME": str(self._home.path)}),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def __exit__(self, *_: object) -> None:
        ignore_signals()
        keeper = self._keeper
        if keeper is None:
            return
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            keeper.kill()  # every part runs under the leash and ends with it
            keeper.wait()
        if keeper.returncode < 0:
            stop_stages(self._home)

    def _listen(self, pipe: IO[bytes]) -> None:
        """Queue the keeper's events; None at its end."""
        for line in pipe:
            self._said.put(json.loads(line))
        self._said.put(None)

    def events(self, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the keeper's events; ends after ``timeout_s`` of silence. Raises :class:`NotUp` at its end."""
        while True:
            try:
                word = self._said.get(timeout=timeout_s)
            except queue.Empty:
                return
            if word is None:
                assert self._keeper is not None
                raise NotUp(f"the keeper of the stack ended; see {self._home.path / 'keeper.log'}")
            if word["event"] == "trouble":
                raise NotUp(word["text"])
            yield word
