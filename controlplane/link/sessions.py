"""The two sockets of a session, the caller's and the agent's, which may be of two processes of the web server.

Whatever one of them hears goes to the other by the channel layer, piece by piece, numbered. Nothing piles up on the
way: each side sends ``WINDOW_BYTES`` at most that the other has not said it took, and a side that sends more is cut
off. A piece that the layer lost ends the session, for a stream with a hole is none.

The caller's socket owns the session: it notes how it ended, and both look once a second whether it still may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Annotated, Any, Final

import msgspec
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.utils.translation import gettext as _

from agents.protocol import (
    CLOSE_NO_SESSION,
    CLOSE_UNAUTHENTICATED,
    PIECE_BYTES,
    WINDOW_BYTES,
    OpenSession,
    SessionEnd,
    SessionWord,
)
from controlplane.access import service as access
from controlplane.access.models import Token
from controlplane.api.jobs import found
from controlplane.api.problem import Refused
from controlplane.fleet import service as fleet
from controlplane.jobs import sessions
from controlplane.jobs.clauses import Told, clause, in_words, told
from controlplane.jobs.models import Session
from controlplane.link.agent import _in_thread
from controlplane.link.agent import _standing as _of_nodes
from controlplane.link.door import UNREADABLE
from controlplane.link.standing import Standing
from controlplane.sentences import title
from controlplane.wellformed import fault_in

log = logging.getLogger(__name__)

ASK_S: Final = 15.0
JOIN_S: Final = 20.0
LONGEST_MESSAGE: Final = 131_072
# What one socket may say ahead of the other: a piece may have one byte only, and costs far more to keep.
MOST_PIECES: Final = 16_384
WORDS_PER_S: Final = 2_000
_STDIN, _STDOUT, _STDERR = range(3)
_encode = msgspec.json.Encoder().encode
_word = msgspec.json.Decoder(SessionWord).decode
_standing: Standing[sessions.Key, str] = Standing(sessions.standing)


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a caller."""

    command: Annotated[list[Annotated[str, msgspec.Meta(max_length=32_768)]], msgspec.Meta(max_length=1_024)] = []
    stage: Annotated[str, msgspec.Meta(max_length=63)] = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    tty: bool = False
    stdin: bool = False
    rows: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 24
    columns: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 80
    term: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._+-]{0,64}\Z")] = ""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


_ask = msgspec.json.Decoder(Ask).decode


class _Side(AsyncWebsocketConsumer):
    """What both sockets of a session have in common."""

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
        """Ends this side, for the reason with this code."""
        raise NotImplementedError

    async def pass_on(self, kind: str, **what: Any) -> None:
        """Sends something to the other socket."""
        self.sent += 1
        try:
            await self.channel_layer.send(self.peer, {"type": f"session.{kind}", "n": self.sent, **what})
        except Exception as error:  # noqa: BLE001  Redis is away: without it there is no way to the other side
            log.warning("session %s: %s", self.session_id, error)
            await self.cut("GuestLost")

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Passes on what this socket says, and cuts off what keeps to no rule."""
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
            word = _word((text_data or "").encode()[:LONGEST_MESSAGE])
        except UNREADABLE:
            await self.cut("GuestBroken")
            return
        self.to_come = max(0, self.to_come - word.taken)
        await self._slow_down()
        await self.said(word)

    async def _slow_down(self) -> None:
        """Hears no more words of a socket in a second than any command needs; what is not heard waits over there."""
        now = time.monotonic()
        self.words = max(0.0, self.words - (now - self.counted_at) * WORDS_PER_S) + 1
        self.counted_at = now
        if self.words > WORDS_PER_S:
            await asyncio.sleep((self.words - WORDS_PER_S) / WORDS_PER_S)

    async def said(self, word: SessionWord) -> None:
        """This socket said something else."""
        await self.pass_on("word", word=_encode(word))

    async def session_piece(self, event: dict[str, Any]) -> None:
        if await self._is_next(event):
            content = event["content"]
            self.to_come += len(content) - 1
            self.moved_at = time.monotonic()
            await self.tell(content)

    async def session_word(self, event: dict[str, Any]) -> None:
        if await self._is_next(event):
            word = _word(event["word"])
            self.on_their_way = max(0, self.on_their_way - word.taken)
            self.pieces = self.pieces if self.on_their_way else 0
            await self.heard_of(word)

    async def heard_of(self, word: SessionWord) -> None:
        """The other socket said something else."""
        await self.tell(_encode(word).decode())

    async def tell(self, what: str | bytes) -> None:
        """Sends something to this socket. Where it went away meanwhile, what it said before that still counts."""
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


class CallerDoor(_Side):
    """Whoever wants to enter a job: ``/api/v1/jobs/<job>/exec``, with an access token and no cookie.

    -> {"command": ["nvidia-smi"], "stage": "", "rank": 0, "tty": false, "stdin": false, "reason": ""}
    <- {"refused": {"status": 403, "code": ..., "detail": ...}}         and the end
    <- {"opened": {"session": ..., "stage": ..., "rank": 0, "node": ...}}
    then both ways what :class:`agents.protocol.OpenSession` says; last {"end": {...}}
    """

    is_caller = True
    streams = (_STDIN,)
    opened: Session | None = None
    waiting: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await super().connect()
        self.is_asked = self.is_joined = False
        await self.accept()
        self.waiting = asyncio.create_task(self._lose_patience(ASK_S, "GuestBroken"))

    async def _lose_patience(self, seconds: float, why: str) -> None:
        await asyncio.sleep(seconds)
        self.ending = self.ending or asyncio.create_task(self.cut(why))

    def _wait_no_more(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Reads the question first; what comes before the agent is there was not asked for."""
        if self.is_asked:
            await super().receive(text_data=text_data, bytes_data=bytes_data)
            return
        self.is_asked = True
        self._wait_no_more()
        try:
            session = await _in_thread(self._begin, text_data or "")
        except Refused as refused:
            await self._refuse(refused.status, refused.code, refused.detail)
            return
        except sessions.NotOpened as refused:
            await self._refuse(refused.status, refused.code, str(refused))
            return
        except DatabaseError as error:
            log.warning("a session could not be opened: %s", error)
            await self._refuse(503, "unavailable", _("the database of the control plane does not answer; try again"))
            return
        self.opened = session
        self.watch(session.id)
        self.waiting = asyncio.create_task(self._lose_patience(JOIN_S, "GuestSilent"))
        order = {"type": "session.open", "session": str(session.id), "part": str(session.part_id)}
        try:
            await self.channel_layer.group_send(f"node.{session.part.node_id}", {**order, "caller": self.channel_name})
        except Exception as error:  # noqa: BLE001  Redis is away
            log.warning("session %s: %s", session.id, error)
            await self.cut("GuestLost")

    def _begin(self, text: str) -> Session:
        token = self._token()
        if sessions.SCOPE not in token.scopes:
            detail = _("this access token covers {scopes}; this needs the scope {needed}")
            scopes = ", ".join(token.scopes) or _("nothing")
            raise Refused(403, "scope_missing", detail.format(scopes=scopes, needed=sessions.SCOPE))
        try:
            ask = _ask(text.encode()[:LONGEST_MESSAGE])
        except UNREADABLE as error:
            raise Refused(400, "invalid", _("this opens no session: {fault}").format(fault=error)) from None
        for word in (*ask.command, ask.stage, ask.reason):
            if fault := fault_in(word):
                raise Refused(400, "invalid", fault)
        job = found(token.user, self.scope["url_route"]["kwargs"]["name"])
        wish = sessions.Wish(**{name: getattr(ask, name) for name in ask.__struct_fields__})
        return sessions.begin(job, token.user, token, self.channel_name, wish)

    def _token(self) -> Token:
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        scheme, _space, secret = header.partition(" ")
        token = access.token_of(secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Refused(401, "not_authenticated", _("this access token is unknown, revoked or expired"))
        access.touch(token)
        return token

    async def _refuse(self, status: int, code: str, detail: str) -> None:
        self.is_over = True
        problem = {"title": str(title(status)), "status": status, "code": code, "detail": detail}
        await self.send(text_data=_encode({"refused": problem}).decode())
        await self.close()

    async def session_joined(self, event: dict[str, Any]) -> None:
        """The agent is there."""
        if self.is_joined or self.is_over or self.opened is None:
            return
        self.is_joined = True
        self._wait_no_more()
        self.peer = str(event["agent"])
        part = self.opened.part
        opened = {
            "session": str(self.opened.id),
            "stage": part.attempt.stage.name,
            "rank": part.rank,
            "node": part.node.name,
        }
        await self.tell(_encode({"opened": opened}).decode())

    async def said(self, word: SessionWord) -> None:
        await self.pass_on("word", word=_encode(msgspec.structs.replace(word, end=None)))

    async def heard_of(self, word: SessionWord) -> None:
        if word.end is None:
            await super().heard_of(word)
            return
        how, params = sessions.of_end(word.end)
        if word.end.cut and not word.end.error:
            word = SessionWord(end=msgspec.structs.replace(word.end, error=in_words(how.text, how.said)))
        assert word.end is not None, "it was there before"
        await self._end(word.end, how, params)

    async def cut(self, why: str) -> None:
        params = {"idle_s": settings.SESSION_IDLE_S} if why == "GuestIdle" else {}
        how = told(clause(why, **params))
        if self.peer:
            with contextlib.suppress(Exception):
                await self.channel_layer.send(self.peer, {"type": "session.cut", "why": why})
        await self._end(SessionEnd(cut=why, error=in_words(how.text, how.said)), how, {})

    async def _end(self, end: SessionEnd, how: Told, params: dict[str, Any]) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._wait_no_more()
        await self._note(how, params)
        with contextlib.suppress(Exception):  # it may have gone away by itself
            await self.send(text_data=_encode(SessionWord(end=end)).decode())
            await self.close()

    async def _note(self, how: Told, params: dict[str, Any]) -> None:
        if self.session_id is None:
            return
        try:
            await _in_thread(sessions.end, self.session_id, how, params)
        except DatabaseError as error:
            log.warning("the end of session %s could not be noted yet: %s", self.session_id, error)

    async def disconnect(self, code: int) -> None:
        self._wait_no_more()
        if not self.is_over:
            await self.cut("GuestGone")
        await super().disconnect(code)


class AgentDoor(_Side):
    """The agent that serves a session, on a socket of its own: ``/agent/v1/sessions/<session>``."""

    streams = (_STDOUT, _STDERR)
    credential = ""

    async def connect(self) -> None:
        await super().connect()
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        node = await _in_thread(fleet.authenticate, header)
        if node is None:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        session = await _in_thread(sessions.join, self.scope["url_route"]["kwargs"]["session"], node)
        if session is None:
            await self.close(CLOSE_NO_SESSION)
            return
        await self.accept()
        part = session.part
        opened = OpenSession(
            part=str(part.id),
            epoch=part.epoch,
            argv=session.command,
            tty=session.tty,
            stdin=session.stdin,
            rows=session.rows,
            columns=session.columns,
            term=session.term,
        )
        await self.send(text_data=_encode(opened).decode())
        self.peer, self.credential = session.channel, node.credential_digest
        self.watch(session.id)
        _of_nodes.enter(self, node.id, self._check)
        await self.channel_layer.send(self.peer, {"type": "session.joined", "agent": self.channel_name})

    def _check(self, now: fleet.Standing | None) -> None:
        """Whoever dialled is the node's agent for as long as the credential is the node's."""
        if self.ending is None and (now is None or now.credential != self.credential):
            self.ending = asyncio.create_task(self.cut("GuestLink"))

    async def said(self, word: SessionWord) -> None:
        await self.pass_on("word", word=_encode(word))
        if word.end is not None and not self.is_over:
            # The agent waits for this: it has said all.
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
        await _of_nodes.leave(self)
        await super().disconnect(code)
