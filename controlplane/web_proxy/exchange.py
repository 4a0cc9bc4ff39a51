"""One HTTP request of a browser and its answer, passed on as they come: neither body is ever held as a whole."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import h11
from django.utils.translation import gettext as _

from controlplane.web_proxy import heads
from controlplane.web_proxy.heads import Place
from controlplane.web_proxy.port_stream import PortRefused
from controlplane.web_proxy.upstreams import Upstream, Upstreams

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

# How long a browser may send nothing of a body that it has begun, and a part nothing before its answer begins.
BODY_S: Final = 60.0
ANSWER_S: Final = 300.0


class BrowserGone(Exception):
    """Raised if the browser went away."""


class AnswerCut(Exception):
    """Raised if the answer ended before it was whole; the browser's connection is to be closed."""


class _Stale(Exception):
    """A connection that was kept had been closed by the part."""


class Exchange:
    """A request and its answer. ``visit`` is called whenever something of either moves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, place: Place, visit: Callable[[], None]) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._place, self._visit = place, visit
        self._has_begun = False
        names = {key for key, _value in scope["headers"]}
        self._length = heads.value(scope["headers"], b"content-length") or (
            b"" if b"transfer-encoding" in names else b"0"
        )

    async def run(self, upstreams: Upstreams, session_id: uuid.UUID) -> None:
        """Pass the request on, and the answer back. Raises PortRefused before the answer has begun, AnswerCut after
        that, and BrowserGone."""
        try:
            try:
                await self._once(upstreams, session_id, fresh=False)
            except _Stale:
                await self._once(upstreams, session_id, fresh=True)
        except (PortRefused, h11.RemoteProtocolError) as error:
            if self._has_begun:
                raise AnswerCut from None
            if isinstance(error, PortRefused):
                raise
            raise PortRefused(502, _("what the port answers is not HTTP")) from None

    async def _once(self, upstreams: Upstreams, session_id: uuid.UUID, *, fresh: bool) -> None:
        async with upstreams.one(session_id, fresh=fresh) as upstream:
            try:
                await self._through(upstream)
            except (PortRefused, h11.RemoteProtocolError):
                # A part may close a connection that was kept at any moment. Only what may be done twice is repeated.
                may_repeat = self._scope["method"] in ("GET", "HEAD") and self._length == b"0"
                if upstream.is_new or self._has_begun or not may_repeat:
                    raise
                raise _Stale from None

    async def _through(self, upstream: Upstream) -> None:
        up, down = asyncio.create_task(self._ask(upstream)), asyncio.create_task(self._answer(upstream))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if up.done() and isinstance(up.exception(), PortRefused) and upstream.stream.is_over:
                # It may have answered before it closed the connection.
                await asyncio.wait((down,))
            (down if down.done() else up).result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _ask(self, upstream: Upstream) -> None:
        """Pass on the request, and wait for the browser to go away."""
        headers = heads.to_part(self._scope, self._place)
        if self._length != b"0":
            body = (b"content-length", self._length) if self._length else (b"transfer-encoding", b"chunked")
            headers.append(body)
        target = heads.target(self._scope)
        try:
            await upstream.send(h11.Request(method=self._scope["method"], target=target, headers=headers))
            is_more = True
            while is_more:
                message = await self._next()
                is_more = bool(message.get("more_body"))
                if content := message.get("body"):
                    self._visit()
                    await upstream.send(h11.Data(data=content))
            await upstream.send(h11.EndOfMessage())
        except h11.LocalProtocolError:
            raise PortRefused(400, _("this request is not HTTP/1.1 that could be passed on")) from None
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._gone()
        except TimeoutError:
            if not self._has_begun:
                raise PortRefused(504, _("the port did not answer within {s} s").format(s=int(ANSWER_S))) from None
        await self._gone()

    async def _next(self) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(BODY_S):
                message = await self._receive()
        except TimeoutError:
            raise PortRefused(408, _("nothing came of the body for {s} s").format(s=int(BODY_S))) from None
        if message["type"] == "http.disconnect":
            raise BrowserGone
        return message

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise BrowserGone

    async def _answer(self, upstream: Upstream) -> None:
        event = await upstream.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await upstream.next_event()
        if not isinstance(event, h11.Response):
            raise PortRefused(502, _("the port closed the connection without an answer"))
        received = list(event.headers)
        if len(received) > heads.MOST:
            said = _("the port answers with more than {most} lines of headers").format(most=heads.MOST)
            raise PortRefused(502, said)
        self._has_begun = True
        own = heads.from_part(received, self._place)
        await self._send({"type": "http.response.start", "status": event.status_code, "headers": own})
        while not isinstance(event := await upstream.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise AnswerCut
            self._visit()
            await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})
