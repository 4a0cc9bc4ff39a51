"""Connections to the ports of sessions, kept for a while so that a page of a hundred files opens only a few."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import h11

from controlplane.web_proxy.port_stream import PortStream

# Requests that one session has under way at once; further ones wait.
MOST: Final = 16
KEPT_S: Final = 10.0
HEAD_BYTES: Final = 64 * 1024


class Upstream:
    """A connection to a part that speaks HTTP/1.1, which may serve several requests one after the other."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self.stream = PortStream(session_id)
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self.is_new = True
        # Closes it once it was kept for long enough.
        self.drop: asyncio.TimerHandle | None = None

    async def send(self, event: h11.Event) -> None:
        """Send an event. Raises PortRefused, and LocalProtocolError if it is none that HTTP has."""
        if content := self.http.send(event):
            await self.stream.write(content)

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event of the answer. Raises RemoteProtocolError if it is no HTTP."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            self.http.receive_data(await self.stream.read())

    def is_reusable(self) -> bool:
        """Whether it can serve another request; it is made ready for that."""
        if not self.stream.is_quiet or self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if self.http.trailing_data[0]:
            return False
        self.http.start_next_cycle()
        self.is_new = False
        return True


class Upstreams:
    """The connections of all sessions of this process."""

    def __init__(self) -> None:
        self._kept: dict[uuid.UUID, list[Upstream]] = {}
        self._turns: dict[uuid.UUID, asyncio.Semaphore] = {}
        self._waiting: dict[uuid.UUID, int] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def one(self, session_id: uuid.UUID, *, fresh: bool = False) -> AsyncIterator[Upstream]:
        """Lend a connection; it is kept if it can be used again, else closed. Raises PortRefused."""
        turns = self._turns.setdefault(session_id, asyncio.Semaphore(MOST))
        self._waiting[session_id] = self._waiting.get(session_id, 0) + 1
        try:
            async with turns:
                found = None if fresh else self._take(session_id)
                if found is None:
                    found = Upstream(session_id)
                    await found.stream.open()
                is_whole = False
                try:
                    yield found
                    is_whole = True
                finally:
                    if is_whole and found.is_reusable():
                        self._keep(session_id, found)
                    else:
                        await found.stream.close()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id], self._turns[session_id]

    def _take(self, session_id: uuid.UUID) -> Upstream | None:
        kept = self._kept.get(session_id, [])
        while kept:
            found = kept.pop()
            if found.drop is not None:
                found.drop.cancel()
            if found.stream.is_quiet:
                return found
            self._close(found)
        return None

    def _keep(self, session_id: uuid.UUID, upstream: Upstream) -> None:
        self._kept.setdefault(session_id, []).append(upstream)
        upstream.drop = asyncio.get_running_loop().call_later(KEPT_S, self._drop, session_id, upstream)

    def _drop(self, session_id: uuid.UUID, upstream: Upstream) -> None:
        kept = self._kept.get(session_id, [])
        if upstream in kept:
            kept.remove(upstream)
            self._close(upstream)
        if not kept:
            self._kept.pop(session_id, None)

    def _close(self, upstream: Upstream) -> None:
        task = asyncio.get_running_loop().create_task(upstream.stream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
