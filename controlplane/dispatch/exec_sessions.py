"""Base of the two WebSockets of a ``yard exec`` session, and the agent's one; the caller's is in ``live.exec_socket``.

The two belong to different processes: agents connect to the gateway, callers to the web server. Messages pass between
them through the channel layer in numbered pieces. Flow control bounds them: each side sends at most ``WINDOW_BYTES``
that the other has not acknowledged, and a side that sends more is disconnected. A lost piece ends the session, because
a stream with a gap is useless.

The caller's socket owns the session and records how it ended. Both check once a second whether it is still allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Any, Final

import msgspec
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from agents.protocol import (
    CLOSE_NO_SESSION,
    CLOSE_UNAUTHENTICATED,
    PIECE_BYTES,
    WINDOW_BYTES,
    OpenSession,
    SessionWord,
)
from controlplane.dispatch.agent_socket import in_thread
from controlplane.dispatch.agent_socket import standing as standing_of_nodes
from controlplane.dispatch.report_decoder import UNREADABLE
from controlplane.fleet import service as fleet
from controlplane.jobs import sessions
from controlplane.socket_authorization import AuthorizationWatch

log = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 131_072
# The most messages that one socket may have in flight: a piece may have one byte only, and costs far more to store.
MOST_PIECES: Final = 16_384
WORDS_PER_S: Final = 2_000
STDIN, STDOUT, STDERR = range(3)
encode = msgspec.json.Encoder().encode
decode_word = msgspec.json.Decoder(SessionWord).decode
_standing: AuthorizationWatch[sessions.Key, str] = AuthorizationWatch(sessions.standing)


class SessionSocket(AsyncWebsocketConsumer):
    """Common base of the caller's and the agent's socket."""

    session_id: uuid.UUID | None = None
    is_caller = False
    peer = ""
    # The streams that this socket may send.
    streams: tuple[int, ...] = ()

    async def connect(self) -> None:
        self.is_over = False
        self.sent = self.heard = 0
        # Bytes on their way from this socket, and to it.
        self.on_their_way = self.to_come = self.pieces = 0
        self.words, self.counted_at = 0.0, time.monotonic()
        self.moved_at = time.monotonic()
        self.ending: asyncio.Task[None] | None = None

    def watch(self, session_id: uuid.UUID) -> None:
        self.session_id = session_id
        _standing.enter(self, (session_id, self.is_caller), self._judge)

    def _judge(self, why: str | None) -> None:
        idle_s = settings.SESSION_IDLE_S
        if why is None:
            why = "GuestLost"
        elif not why and self.is_caller and idle_s and time.monotonic() - self.moved_at > idle_s:
            why = "GuestIdle"
        if why and self.ending is None:
            self.ending = asyncio.create_task(self.cut(why))

    async def cut(self, why: str) -> None:
        """End this side with the reason of this code."""
        raise NotImplementedError

    async def pass_on(self, kind: str, **what: Any) -> None:
        """Send a message to the other socket."""
        self.sent += 1
        try:
            await self.channel_layer.send(self.peer, {"type": f"session.{kind}", "n": self.sent, **what})
        except Exception as error:  # noqa: BLE001  Redis is away: without it there is no way to the other side
            log.warning("session %s: %s", self.session_id, error)
            await self.cut("GuestLost")

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pass on a message of this socket; disconnect it if the message breaks a rule."""
        if self.is_over or not self.peer:
            return
        if bytes_data:
            size = len(bytes_data) - 1
            self.on_their_way += size
            self.pieces += 1
            is_much = self.on_their_way > WINDOW_BYTES or self.pieces > MOST_PIECES
            if bytes_data[0] not in self.streams or size > PIECE_BYTES or is_much:
                await self.cut("GuestBroken")
                return
            self.moved_at = time.monotonic()
            await self.pass_on("piece", content=bytes_data)
            return
        try:
            word = decode_word((text_data or "").encode()[:LONGEST_MESSAGE])
        except UNREADABLE:
            await self.cut("GuestBroken")
            return
        self.to_come = max(0, self.to_come - word.taken)
        await self._slow_down()
        await self.on_message(word)

    async def _slow_down(self) -> None:
        """Read at most so many control messages a second from a socket; further ones stay unread, which slows the
        sender down."""
        now = time.monotonic()
        self.words = max(0.0, self.words - (now - self.counted_at) * WORDS_PER_S) + 1
        self.counted_at = now
        if self.words > WORDS_PER_S:
            await asyncio.sleep((self.words - WORDS_PER_S) / WORDS_PER_S)

    async def on_message(self, word: SessionWord) -> None:
        """Handle a message that is no data."""
        await self.pass_on("word", word=encode(word))

    async def session_piece(self, event: dict[str, Any]) -> None:
        if await self._is_next(event):
            content = event["content"]
            self.to_come += len(content) - 1
            self.moved_at = time.monotonic()
            await self.tell(content)

    async def session_word(self, event: dict[str, Any]) -> None:
        if await self._is_next(event):
            word = decode_word(event["word"])
            self.on_their_way = max(0, self.on_their_way - word.taken)
            self.pieces = self.pieces if self.on_their_way else 0
            await self.on_peer_message(word)

    async def on_peer_message(self, word: SessionWord) -> None:
        """Handle a message of the other socket that is no data."""
        await self.tell(encode(word).decode())

    async def tell(self, what: str | bytes) -> None:
        """Send a message to this socket. If it is closed meanwhile, what it sent before still counts."""
        try:
            await (self.send(text_data=what) if isinstance(what, str) else self.send(bytes_data=what))
        except Exception:
            log.debug("session %s: a socket went away", self.session_id, exc_info=True)

    async def session_cut(self, event: dict[str, Any]) -> None:
        if not self.is_over:
            await self.cut(str(event["why"]))

    async def _is_next(self, event: dict[str, Any]) -> bool:
        self.heard += 1
        if not self.is_over and event["n"] != self.heard:
            await self.cut("GuestLost")
        return not self.is_over

    async def disconnect(self, code: int) -> None:
        await _standing.leave(self)


class AgentSession(SessionSocket):
    """The agent's socket of a session: ``/agent/v1/sessions/<session>``."""

    streams = (STDOUT, STDERR)
    credential = ""

    async def connect(self) -> None:
        await super().connect()
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        node = await in_thread(fleet.authenticate, header)
        if node is None:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        session = await in_thread(sessions.join, self.scope["url_route"]["kwargs"]["session"], node)
        if session is None:
            await self.close(CLOSE_NO_SESSION)
            return
        await self.accept()
        part = session.part
        opened = OpenSession(
            part=str(part.id),
            epoch=part.epoch,
            # An agent that knows no ports runs this instead, and not a shell.
            argv=["false"] if session.port else session.command,
            tty=session.tty,
            stdin=session.stdin,
            rows=session.rows,
            columns=session.columns,
            term=session.term,
            port=session.port or 0,
        )
        await self.send(text_data=encode(opened).decode())
        self.peer, self.credential = session.channel, node.credential_digest
        self.watch(session.id)
        standing_of_nodes.enter(self, node.id, self._check)
        await self.channel_layer.send(self.peer, {"type": "session.joined", "agent": self.channel_name})

    def _check(self, now: fleet.AgentStanding | None) -> None:
        """Check that the credential that opened the connection is still the node's."""
        if self.ending is None and (now is None or now.credential != self.credential):
            self.ending = asyncio.create_task(self.cut("GuestLink"))

    async def on_message(self, word: SessionWord) -> None:
        await self.pass_on("word", word=encode(word))
        if word.end is not None and not self.is_over:
            # The agent waits for this after its last message.
            self.is_over = True
            await self.close()

    async def cut(self, why: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        with contextlib.suppress(Exception):
            await self.channel_layer.send(self.peer, {"type": "session.cut", "why": why})
        with contextlib.suppress(Exception):
            await self.close()

    async def disconnect(self, code: int) -> None:
        if self.peer and not self.is_over:
            self.is_over = True
            with contextlib.suppress(Exception):
                await self.channel_layer.send(self.peer, {"type": "session.cut", "why": "GuestLink"})
        await standing_of_nodes.leave(self)
        await super().disconnect(code)
