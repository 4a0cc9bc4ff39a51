"""The socket of a person who opens an interactive session in a running stage: requests it, owns it, records its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Annotated, Any, Final

import msgspec
from django.conf import settings
from django.db import DatabaseError
from django.utils.translation import gettext as _

from agents.protocol import SessionEnd, SessionWord
from controlplane.accounts import service as access
from controlplane.accounts.models import Token
from controlplane.api.problem import RequestRefused
from controlplane.api.throttle import admits
from controlplane.clauses import Told, clause, in_words, told
from controlplane.dispatch.agent_socket import in_thread
from controlplane.dispatch.exec_sessions import LONGEST_MESSAGE, STDIN, SessionSocket, encode
from controlplane.dispatch.report_decoder import UNREADABLE
from controlplane.jobs import sessions
from controlplane.jobs.models import Session
from controlplane.queries.jobs import found
from controlplane.queries.refusals import Unseen
from controlplane.sentences import title
from controlplane.wellformed import fault_in

log = logging.getLogger(__name__)

ASK_S: Final = 15.0
JOIN_S: Final = 20.0


class ExecRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    of: Annotated[str, msgspec.Meta(max_length=36)] = ""


_ask = msgspec.json.Decoder(ExecRequest).decode


def _named(session: str) -> str:
    """Return the id of a session as it is written here; empty if it is none."""
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(session))
    return ""


class CallerSession(SessionSocket):
    """A caller's session in a job: ``/api/v1/jobs/<job>/exec``, with an access token and no cookie.

    -> {"command": ["nvidia-smi"], "stage": "", "rank": 0, "tty": false, "stdin": false, "reason": ""}
    <- {"refused": {"status": 403, "code": ..., "detail": ...}}         and the socket is closed
    <- {"opened": {"session": ..., "stage": ..., "rank": 0, "node": ...}}
    {"port": 8888} holds a port of the stage; each connection to it is a socket that asks {"of": <that session>}
    then in both directions what :class:`agents.protocol.OpenSession` says; last {"end": {...}}
    """

    is_caller = True
    streams = (STDIN,)
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
        """Read the request first; input that arrives before the agent has joined was not requested."""
        if self.is_asked:
            await super().receive(text_data=text_data, bytes_data=bytes_data)
            return
        self.is_asked = True
        self._wait_no_more()
        try:
            session = await in_thread(self._begin, text_data or "")
        except RequestRefused as refused:
            await self._refuse(refused.status, refused.code, refused.detail)
            return
        except Unseen as unseen:
            await self._refuse(404, "not_found", str(unseen))
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
            raise RequestRefused(403, "scope_missing", detail.format(scopes=scopes, needed=sessions.SCOPE))
        try:
            ask = _ask(text.encode()[:LONGEST_MESSAGE])
        except UNREADABLE as error:
            raise RequestRefused(400, "invalid", _("this opens no session: {fault}").format(fault=error)) from None
        for word in (*ask.command, ask.stage, ask.reason):
            if fault := fault_in(word):
                raise RequestRefused(400, "invalid", fault)
        if ask.of and not admits(f"connect:{token.digest}:{_named(ask.of)}", settings.CONNECTIONS_PER_S):
            text = _("this port takes {most} new connections a second; connect again in a moment")
            raise RequestRefused(429, "too_many", text.format(most=settings.CONNECTIONS_PER_S))
        job = found(token.user, self.scope["url_route"]["kwargs"]["name"])
        wish = sessions.SessionRequest(**{name: getattr(ask, name) for name in ask.__struct_fields__})
        return sessions.begin(job, token.user, token, self.channel_name, wish)

    def _token(self) -> Token:
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        scheme, _space, secret = header.partition(" ")
        token = access.token_of(secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise RequestRefused(401, "not_authenticated", _("this access token is unknown, revoked or expired"))
        access.touch(token)
        return token

    async def _refuse(self, status: int, code: str, detail: str) -> None:
        self.is_over = True
        problem = {"title": str(title(status)), "status": status, "code": code, "detail": detail}
        await self.send(text_data=encode({"refused": problem}).decode())
        await self.close()

    async def session_joined(self, event: dict[str, Any]) -> None:
        """Handle the agent's joining of the session."""
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
        await self.tell(encode({"opened": opened}).decode())

    async def on_message(self, word: SessionWord) -> None:
        await self.pass_on("word", word=encode(msgspec.structs.replace(word, end=None)))

    async def on_peer_message(self, word: SessionWord) -> None:
        if word.end is None:
            await super().on_peer_message(word)
            return
        how, params = sessions.of_end(word.end)
        if word.end.cut and not word.end.error:
            word = SessionWord(end=msgspec.structs.replace(word.end, error=in_words(how.text, how.said)))
        assert word.end is not None, "it was there before"
        await self._end(word.end, how, params)

    async def cut(self, why: str) -> None:
        if why == "GuestIdle" and self.session_id:
            try:
                is_used = await in_thread(sessions.is_used, self.session_id)
            except DatabaseError as error:
                log.warning(
                    "session %s: whether it is idle could not be read; it is asked again: %s", self.session_id, error
                )
                self.ending = None
                return
            if is_used:
                self.moved_at, self.ending = time.monotonic(), None
                return
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
        with contextlib.suppress(Exception):  # it may be closed already
            await self.send(text_data=encode(SessionWord(end=end)).decode())
            await self.close()

    async def _note(self, how: Told, params: dict[str, Any]) -> None:
        if self.session_id is None:
            return
        try:
            await in_thread(sessions.end, self.session_id, how, params)
        except DatabaseError as error:
            log.warning("the end of session %s could not be noted yet: %s", self.session_id, error)

    async def disconnect(self, code: int) -> None:
        self._wait_no_more()
        if not self.is_over:
            await self.cut("GuestGone")
        await super().disconnect(code)
