"""Rechecks once a second whether open WebSockets are still authorised, in one query for all sockets of a process.

A hint triggers a check at once; the timer is what is relied on. While the database is unavailable no socket is closed,
and nothing can be read over one either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections

log = logging.getLogger(__name__)

EVERY_S = 1.0
K = TypeVar("K")
V = TypeVar("V")


class AuthorizationWatch(Generic[K, V]):
    """Watches sockets that each depend on a row.

    ``read`` returns what is valid now for many keys at once; ``on_result`` is called with the result, or None if there
    is none any more, and must not block.
    """

    def __init__(self, read: Callable[[set[K]], Mapping[K, V]]) -> None:
        self._read = read
        # By event loop: a server has one, each test its own.
        self._rolls: WeakKeyDictionary[asyncio.AbstractEventLoop, _Roll[K, V]] = WeakKeyDictionary()

    def enter(self, socket: Any, key: K, on_result: Callable[[V | None], None]) -> None:
        """Watch a socket from now on."""
        roll = self._rolls.setdefault(asyncio.get_running_loop(), _Roll())
        roll.members[socket] = (key, on_result)
        if roll.asking is None or roll.asking.done():
            roll.asking = asyncio.create_task(self._keep_asking(roll))

    def watched(self) -> list[K]:
        """Return the keys of this event loop's sockets, one per socket."""
        roll = self._rolls.get(asyncio.get_running_loop())
        return [key for key, _ in roll.members.values()] if roll else []

    async def leave(self, socket: Any) -> None:
        """Stop watching a socket. The checks end with the last one, and no thread is left behind."""
        roll = self._rolls.get(asyncio.get_running_loop())
        if roll and roll.members.pop(socket, None) and not roll.members and roll.asking:
            roll.stir.set()
            await asyncio.shield(roll.asking)

    def hurry(self) -> None:
        """Check at once."""
        if roll := self._rolls.get(asyncio.get_running_loop()):
            roll.stir.set()

    async def _keep_asking(self, roll: _Roll[K, V]) -> None:
        while roll.members:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await roll.stir.wait()
            roll.stir.clear()
            if not (members := dict(roll.members)):
                return
            try:
                found = await sync_to_async(self._ask, thread_sensitive=False)({key for key, _ in members.values()})
            except DatabaseError as error:
                log.warning("what sockets rest on could not be read: %s", error)
                continue
            for socket, (key, on_result) in members.items():
                if socket in roll.members:
                    on_result(found.get(key))

    def _ask(self, keys: set[K]) -> Mapping[K, V]:
        try:
            return self._read(keys)
        finally:
            connections.close_all()


class _Roll(Generic[K, V]):
    """The sockets of one event loop."""

    def __init__(self) -> None:
        self.members: dict[Any, tuple[K, Callable[[V | None], None]]] = {}
        self.stir = asyncio.Event()
        self.asking: asyncio.Task[None] | None = None
