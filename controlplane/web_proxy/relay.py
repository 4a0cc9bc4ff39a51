"""A WebSocket of a browser, joined to one of the part: each message is passed on whole, up to a size."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from controlplane.web_proxy import heads
from controlplane.web_proxy.exchange import Receive, Scope, Send
from controlplane.web_proxy.heads import Place
from controlplane.web_proxy.port_stream import PortRefused, PortStream

LARGEST: Final = 16 * 2**20
HANDSHAKE_S: Final = 30.0
_WENT_AWAY: Final = 1001


class Relay:
    """A WebSocket and its counterpart. ``visit`` is called when the browser sends something."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, place: Place, visit: Callable[[], None]) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._place, self._visit = place, visit
        self._pieces: list[bytes] = []
        self._is_text = False

    async def run(self, session_id: uuid.UUID) -> None:
        """Join the two until one ends. Raises PortRefused before the browser was let in."""
        stream = PortStream(session_id)
        await stream.open()
        try:
            there, events = await self._greet(stream)
            await self._send({"type": "websocket.accept", "subprotocol": there.subprotocol})
            up, down = (
                asyncio.create_task(self._up(there, stream)),
                asyncio.create_task(self._down(there, stream, events)),
            )
            try:
                await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        finally:
            await stream.close()

    async def _greet(self, stream: PortStream) -> tuple[ClientProtocol, list[Frame]]:
        """Return the connection to the part after its handshake, and the frames that came with it."""
        path = heads.target(self._scope).decode("latin-1")
        names = [cast("Subprotocol", name) for name in self._scope.get("subprotocols", ())]
        uri = WebSocketURI(False, "127.0.0.1", self._place.port, path.partition("?")[0], path.partition("?")[2])
        there = ClientProtocol(uri, subprotocols=names or None, max_size=LARGEST)
        request = there.connect()
        for key, content in heads.to_part(self._scope, self._place):
            if key != b"Host":
                request.headers[key.decode("latin-1")] = content.decode("latin-1")
        there.send_request(request)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await _flush(there, stream)
                while there.handshake_exc is None:
                    content = await stream.read()
                    there.receive_data(content) if content else there.receive_eof()
                    came = there.events_received()
                    if came and isinstance(came[0], Response) and there.handshake_exc is None:
                        return there, [each for each in came if isinstance(each, Frame)]
                    if not content:
                        break
        except (InvalidHandshake, EOFError, TimeoutError):
            pass
        raise PortRefused(502, "the port accepts no WebSocket there")

    async def _up(self, there: ClientProtocol, stream: PortStream) -> None:
        """Pass on what the browser sends, until it leaves."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if message["type"] != "websocket.receive":
                continue
            self._visit()
            if message.get("bytes") is not None:
                there.send_binary(message["bytes"])
            else:
                there.send_text(str(message.get("text") or "").encode())
            await _flush(there, stream)
        there.send_close(_WENT_AWAY)
        await _flush(there, stream)

    async def _down(self, there: ClientProtocol, stream: PortStream, events: list[Frame]) -> None:
        """Pass on what the part sends, until it closes; then the browser's socket is closed alike."""
        code, reason = 1011, ""
        while True:
            for frame in events:
                if frame.opcode is Opcode.CLOSE:
                    code, reason = (there.close_rcvd.code, there.close_rcvd.reason) if there.close_rcvd else (1000, "")
                    await self._close(code, reason)
                    return
                await self._pass(frame)
            try:
                await _flush(there, stream)
            except PortRefused:
                break
            content = await stream.read()
            if not content:
                break
            there.receive_data(content)
            events = [each for each in there.events_received() if isinstance(each, Frame)]
            if there.parser_exc is not None and not events:
                code = 1009 if "size" in str(there.parser_exc) else 1002
                break
        await self._close(code, reason)

    async def _pass(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._pieces.append(bytes(frame.data))
        if not frame.fin:
            return
        whole = b"".join(self._pieces)
        self._pieces.clear()
        if self._is_text:
            await self._send({"type": "websocket.send", "text": whole.decode(errors="replace")})
        else:
            await self._send({"type": "websocket.send", "bytes": whole})

    async def _close(self, code: int, reason: str) -> None:
        # 1005 and 1006 tell that there was no code, and are never sent (RFC 6455, section 7.4.1).
        code = 1000 if code == 1005 else 1011 if code in (1006, 1015) else code
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


async def _flush(there: ClientProtocol, stream: PortStream) -> None:
    for content in there.data_to_send():
        if content:
            await stream.write(content)
