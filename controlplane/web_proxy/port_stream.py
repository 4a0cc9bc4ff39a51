"""A connection to a port of a part, as a stream of bytes: the caller's end of a session, within this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _

from agents.protocol import PIECE_BYTES
from controlplane.api.problem import RequestRefused
from controlplane.api.throttle import admits
from controlplane.dispatch.exec_sessions import STDIN, STDOUT
from controlplane.jobs import sessions
from controlplane.jobs.models import Session
from controlplane.live.exec_socket import CallerSession
from controlplane.session_window import SendWindow

CLOSE_S: Final = 5.0


class PortRefused(Exception):
    """Raised if a port cannot be reached; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WebConnection(CallerSession):
    """A connection of a port that somebody opened in a browser: entered by the session's id, and not by a token."""

    def _begin(self, text: str) -> Session:
        session_id = self.scope["web_session"]
        if not admits(f"connect:{session_id}", settings.CONNECTIONS_PER_S):
            detail = _("this port takes {most} new connections a second; connect again in a moment")
            raise RequestRefused(429, "too_many", detail.format(most=settings.CONNECTIONS_PER_S))
        return sessions.connect_web(session_id, self.channel_name)


class PortStream:
    """One connection to the port of a session. Reads and writes wait as the other side does."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self._session_id = session_id
        self._to_consumer: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._window = SendWindow()
        self._pieces: list[bytes] = []
        self._news = asyncio.Event()
        self._is_there = False
        self._refused: PortRefused | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_over = False

    async def open(self) -> None:
        """Connect. Raises :class:`PortRefused`."""
        scope = {"type": "websocket", "path": "", "headers": [], "subprotocols": [], "web_session": self._session_id}
        self._task = asyncio.create_task(self._serve(scope))
        self._to_consumer.put_nowait({"type": "websocket.connect"})
        self._to_consumer.put_nowait({"type": "websocket.receive", "text": ""})
        # The consumer itself gives up after a while.
        while not (self._is_there or self.is_over):
            await self._wait()
        if not self._is_there:
            await self.close()
            raise self._refused or PortRefused(502, "the port closed the connection")

    async def read(self) -> bytes:
        """Return what came since, and let as much follow; empty at the end."""
        while not self._pieces and not self.is_over:
            await self._wait()
        found = b"".join(self._pieces)
        self._pieces.clear()
        if found and not self.is_over:
            self._say(json.dumps({"taken": len(found)}))
        return found

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and has sent nothing that was not read."""
        return not (self.is_over or self._pieces)

    async def write(self, content: bytes) -> None:
        """Send bytes, as the part takes them. Raises :class:`PortRefused` at the end of the connection."""
        for at in range(0, len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES]
            await self._window.take(len(piece))
            if self.is_over:
                raise self._refused or PortRefused(502, "the port closed the connection")
            self._to_consumer.put_nowait({"type": "websocket.receive", "bytes": bytes((STDIN,)) + piece})

    async def close(self) -> None:
        """End the connection at both sides."""
        self._end()
        if (task := self._task) is None:
            return
        self._to_consumer.put_nowait({"type": "websocket.disconnect", "code": 1000})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(task)
        task.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._window.open()
        self._news.set()

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _say(self, text: str) -> None:
        self._to_consumer.put_nowait({"type": "websocket.receive", "text": text})

    async def _serve(self, scope: dict[str, Any]) -> None:
        try:
            await WebConnection.as_asgi()(scope, self._to_consumer.get, self._hear)
        finally:
            self._end()

    async def _hear(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "websocket.close":
            self._to_consumer.put_nowait({"type": "websocket.disconnect", "code": 1000})
        elif message["type"] == "websocket.send" and message.get("bytes") is not None:
            self._hear_piece(message["bytes"])
        elif message["type"] == "websocket.send":
            self._hear_word(json.loads(message["text"]))

    def _hear_piece(self, content: bytes) -> None:
        if content[0] == STDOUT:
            # The first, empty one tells that the port is there.
            self._is_there = True
            if len(content) > 1:
                self._pieces.append(content[1:])
            self._news.set()

    def _hear_word(self, word: dict[str, Any]) -> None:
        if refused := word.get("refused"):
            self._refused = PortRefused(int(refused["status"]), str(refused["detail"]))
            self._end()
        elif (end := word.get("end")) is not None:
            if end.get("error"):
                self._refused = PortRefused(502, str(end["error"]))
            self._end()
        self._window.give(int(word.get("taken", 0)))
