"""Somebody inside a stage that runs: a command with its input and output, over one WebSocket.

with client.jobs.enter(17, ["nvidia-smi"]) as inside:
    for stream, piece in inside:
        print(stream, piece)
print(inside.code)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from switchyard.problem import ApiProblem, Unreachable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from switchyard.wire import Wire

OUT, ERR = 1, 2
PIECE_BYTES: Final = 16_384
WINDOW_BYTES: Final = 262_144
_STATUS: Final = {
    "GuestRight": 403,
    **dict.fromkeys(("GuestLink", "GuestLost", "GuestSilent"), 503),
}


class Entry:
    """A command inside a stage. Iterate over its output; ``opened`` tells where it runs.

    Raises :class:`~switchyard.problem.ApiProblem` if the control plane refuses or ends it, and
    :class:`~switchyard.problem.Unreachable` if the connection breaks. Only one thread may iterate; any may send.
    """

    def __init__(self, wire: Wire, path: str, ask: Mapping[str, Any]) -> None:
        self._wire, self._path, self._ask = wire, path, dict(ask)
        self._opened = ExitStack()
        self._line: ClientConnection
        self._room = threading.Condition()
        self._left = WINDOW_BYTES
        self._is_over = False
        self.opened: dict[str, Any] = {}
        self.end: dict[str, Any] = {}

    def open(self) -> Self:
        """Connect and start the command; return this entry."""
        self._line = self._opened.enter_context(self._wire.socket(self._path))
        try:
            self._line.send(json.dumps(self._ask))
            first = self._receive()
            if isinstance(first, bytes) or "opened" not in first:
                raise Unreachable(f"{self._wire.url} answered something that is no session")
        except BaseException:
            self.close()
            raise
        self.opened = first["opened"]
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the session, which ends the command with its processes."""
        with self._room:
            self._is_over = True
            self._room.notify_all()
        self._opened.close()

    @property
    def code(self) -> int:
        """Return the exit code of the ended command: 128 + N if signal N ended it."""
        signal = self.end.get("signal")
        return 128 + int(signal) if signal else int(self.end.get("code") or 0)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield the output of the command, each piece with its stream, until it has ended."""
        while True:
            heard = self._receive()
            if isinstance(heard, bytes):
                yield heard[0], heard[1:]
                self.say(taken=len(heard) - 1)
            elif end := heard.get("end"):
                self.end = end
                if cut := end.get("cut"):
                    detail = end.get("error") or "the session was ended"
                    raise ApiProblem(_STATUS.get(cut, 409), {"code": "session_ended", "detail": detail})
                return
            elif taken := heard.get("taken"):
                with self._room:
                    self._left = min(WINDOW_BYTES, self._left + int(taken))
                    self._room.notify_all()

    def send(self, content: bytes) -> None:
        """Send input. Blocks while the command does not read; does nothing after its end."""
        for at in range(0, len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES]
            with self._room:
                while self._left < len(piece) and not self._is_over:
                    self._room.wait()
                if self._is_over:
                    return
                self._left -= len(piece)
            self._send(b"\0" + piece)

    def finish(self) -> None:
        """End the command's input."""
        self._send(b"\0")

    def say(self, **word: Any) -> None:
        """Send another message: ``rows`` and ``columns`` of the terminal, or a ``signal`` for the command."""
        self._send(json.dumps(word))

    def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._line.send(message)
        except ConnectionClosed:
            # The iterating thread gets the error.
            return

    def _receive(self) -> bytes | dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            message = self._line.recv()
        except ConnectionClosed:
            raise Unreachable("the connection to the control plane was lost, and the session with it") from None
        if isinstance(message, bytes):
            return message
        told = json.loads(message)
        if problem := told.get("refused"):
            raise ApiProblem(int(problem.get("status") or 400), problem)
        return dict(told)
