"""A port of this machine that leads to a port of a running stage, through the control plane and the node's agent.

with client.jobs.forward(17, 8888) as there:
    print(f"http://127.0.0.1:{there.local_port}")
    there.wait()
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from switchyard.entry import PIECE_BYTES, Entry
from switchyard.problem import SwitchyardError
from switchyard.wire import Wire

MOST: Final = 32
"""So many connections are open at once; further ones wait."""
AGAIN_S: Final = 10.0
"""The same reason why connections fail is told again after this time, in seconds."""


class Forward:
    """Forwards connections from ``127.0.0.1:local_port`` here, in threads of its own, while it is open.

    Raises :class:`~switchyard.problem.ApiProblem` when it is entered if the stage does not listen on the port or you
    may not enter it, and OSError if the port here is taken. ``told`` hears why connections failed: of many that fail
    for the same reason once every ten seconds.
    """

    def __init__(
        self,
        address: tuple[str, str],
        job: str,
        port: int,
        local_port: int,
        ask: Mapping[str, Any],
        told: Callable[[str], object] | None = None,
    ) -> None:
        self._wire, self._path = Wire(*address), f"/jobs/{quote(job, safe='')}/exec"
        self._ask, self.port, self._told = dict(ask), port, told or (lambda text: None)
        self.local_port = local_port
        self.opened: dict[str, Any] = {}
        self._room = threading.BoundedSemaphore(MOST)
        self._over = threading.Event()
        self._failed: BaseException | None = None
        self._joined: set[socket.socket] = set()
        self._said: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.local_port))
        self.local_port = self._listener.getsockname()[1]
        try:
            self._session = Entry(self._wire, self._path, {**self._ask, "port": self.port}).open()
        except BaseException:
            self._listener.close()
            raise
        try:
            # The first piece tells that the stage listens there.
            self._pieces = iter(self._session)
            if next(self._pieces, None) is None:
                raise SwitchyardError("the agent of the node forwards no ports; it is older than this command")
        except BaseException:
            self.close()
            raise
        self.opened = self._session.opened
        for work in (self._hold, self._accept):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and all connections."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or who accepts would wait on
        self._listener.close()
        for here in list(self._joined):
            with suppress(OSError):
                here.shutdown(socket.SHUT_RDWR)
        self._session.close()

    def wait(self) -> None:
        """Wait until it is closed; raises why if the stage ended, or the control plane went away."""
        self._over.wait()
        if self._failed is not None:
            raise self._failed

    def _hold(self) -> None:
        """Read the session that holds the port, until it ends."""
        try:
            for _ in self._pieces:
                pass
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            if not self._over.is_set():
                self._failed = error
        self._over.set()

    def _accept(self) -> None:
        while not self._over.is_set():
            self._room.acquire()
            try:
                here, _ = self._listener.accept()
            except OSError:  # it was closed, or this process has too many open files for now
                self._room.release()
                self._over.wait(0.2)
                continue
            self._joined.add(here)
            threading.Thread(target=self._join, args=(here,), daemon=True).start()

    def _join(self, here: socket.socket) -> None:
        """Pass on what one connection sends and gets, until one side closes."""
        try:
            with here, _shut(here), Entry(self._wire, self._path, {"of": self.opened["session"]}).open() as there:
                threading.Thread(target=_send, args=(here, there), daemon=True).start()
                for _, piece in there:
                    here.sendall(piece)
        except (SwitchyardError, OSError) as error:
            self._complain(str(error))
        finally:
            self._joined.discard(here)
            self._room.release()

    def _complain(self, text: str) -> None:
        """Tell why a connection failed, unless this was told a moment ago."""
        now = time.monotonic()
        self._said = {each: at for each, at in self._said.items() if now - at < AGAIN_S}
        if text not in self._said and not self._over.is_set():
            self._said[text] = now
            self._told(text)


@contextmanager
def _shut(here: socket.socket) -> Iterator[None]:
    """Shut a connection down at the end: closed alone, it stays open while another thread receives from it."""
    try:
        yield
    finally:
        with suppress(OSError):
            here.shutdown(socket.SHUT_RDWR)


def _send(here: socket.socket, there: Entry) -> None:
    with suppress(OSError):
        while piece := here.recv(PIECE_BYTES):
            there.send(piece)
    there.finish()
