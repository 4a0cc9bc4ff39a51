"""Shared by the sockets of one process: hints from the channel layer, and the snapshots that many of them watch.

Everything here belongs to an event loop: a server has one, each test its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import connections
from django.utils import translation

from controlplane.accounts.models import User
from controlplane.queries.snapshots import SAFETY_S, AudienceChanged, Delta, Shared, TopicSource

log = logging.getLogger(__name__)

GROUP: Final = "changes"
JOIN_AGAIN_S: Final = 10.0
FAILED_AGAIN_S: Final = 2.0
Hinted = Callable[[list[str]], None]


class Hints:
    """Receives change hints once for all sockets of the process. Without Redis, updates are slower, nothing else."""

    def __init__(self) -> None:
        self._members: set[Hinted] = set()
        self._listening: asyncio.Task[None] | None = None

    def enter(self, told: Hinted) -> None:
        """Call ``told`` with the keys of every hint from now on."""
        self._members.add(told)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())

    async def leave(self, told: Hinted) -> None:
        """Stop calling it; when the last one leaves, the channel is closed."""
        self._members.discard(told)
        listening = self._listening
        if not self._members and listening is not None:
            self._listening = None
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        layer = get_channel_layer()
        while True:
            channel = ""
            try:
                channel = await layer.new_channel()
                async with asyncio.timeout(2):
                    await layer.group_add(GROUP, channel)
                while True:
                    message = await layer.receive(channel)
                    for told in list(self._members):
                        told(message.get("keys") or [])
            except Exception:  # noqa: BLE001  without Redis there are no hints; the slow looks go on
                await asyncio.sleep(JOIN_AGAIN_S)
            finally:
                if channel:
                    with contextlib.suppress(Exception):
                        await layer.group_discard(GROUP, channel)


class Feed:
    """One shared snapshot that sockets of this process watch.

    ``told`` is called whenever there is something new, and when the feed is closed; a socket that still watches must
    then enter another feed.
    """

    def __init__(self, shared: Shared, hints: Hints) -> None:
        self.shared = shared
        self.is_closed = False
        # Since when a change waits for its snapshot, on the monotonic clock; 0 if none does.
        self.due_at = 0.0
        self._members: set[Callable[[], None]] = set()
        self._stir = asyncio.Event()
        self._hints = hints
        self._keeping: asyncio.Task[None] | None = None

    def enter(self, told: Callable[[], None]) -> None:
        """Watch from now on."""
        self._members.add(told)
        if self._keeping is None:
            self._hints.enter(self._hinted)
            self._keeping = asyncio.create_task(self._keep())
        elif self.shared.snapshot is not None:
            told()

    async def leave(self, told: Callable[[], None]) -> None:
        """Stop watching; when the last one leaves, the feed is closed."""
        self._members.discard(told)
        if not self._members:
            self.is_closed = True
            self._stir.set()
            await self._hints.leave(self._hinted)
            if self._keeping:
                await asyncio.shield(self._keeping)

    def since(self, cursor: str) -> list[Delta]:
        """Return the differences since this cursor."""
        return self.shared.since(cursor)

    def _hinted(self, keys: list[str]) -> None:
        names = {"samples" if key == "samples" else "facts" for key in keys}
        if not names.isdisjoint(self.shared.source.counters):
            self.due_at = self.due_at or time.monotonic()
            self._stir.set()

    async def _keep(self) -> None:
        self.due_at = time.monotonic()
        while not self.is_closed:
            self._stir.clear()
            again_s = FAILED_AGAIN_S
            try:
                again_s = await sync_to_async(self._look, thread_sensitive=False)()
            except AudienceChanged:
                self.is_closed = True
            except Exception:  # a failure must not end the other feeds; beats tell watchers how late it is
                log.exception("%s could not be made", self.shared.source.topic)
            if not again_s and not self._stir.is_set():
                self.due_at = 0.0
            for told in list(self._members):
                told()
            if self.is_closed:
                break
            if again_s:
                await asyncio.sleep(again_s)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SAFETY_S):
                        await self._stir.wait()
        if self._members:  # it closed by itself
            await self._hints.leave(self._hinted)

    def _look(self) -> float:
        try:
            return self.shared.look()
        finally:
            connections.close_all()


class Feeds:
    """The feeds of an event loop; each exists as long as somebody watches it."""

    def __init__(self) -> None:
        self.hints = Hints()
        self._feeds: dict[str, Feed] = {}

    async def of(self, source: TopicSource, user: User, language: str) -> Feed:
        """Return the feed of a source for what this user may see."""
        if source.is_for_all:  # no query is needed to determine what everybody sees
            shared = _shared(source, user, language)
        else:
            shared = await sync_to_async(_of_audience, thread_sensitive=False)(source, user, language)
        feed = self._feeds.get(shared.key)
        if feed is None or feed.is_closed:
            for key in [key for key, one in self._feeds.items() if one.is_closed]:
                del self._feeds[key]
            feed = self._feeds[shared.key] = Feed(shared, self.hints)
        return feed


def _shared(source: TopicSource, user: User, language: str) -> Shared:
    with translation.override(language):
        return Shared.of(source, user)


def _of_audience(source: TopicSource, user: User, language: str) -> Shared:
    try:
        return _shared(source, user, language)
    finally:
        connections.close_all()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Feeds] = WeakKeyDictionary()


def feeds() -> Feeds:
    """Return the feeds of the running event loop."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Feeds())


def sources() -> dict[str, TopicSource]:
    """Return the sources that can be watched as shared snapshots, by topic."""
    from controlplane.pages.overview import SOURCES

    return {source.topic: source for source in SOURCES}
