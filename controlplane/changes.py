"""Publishes change hints and wakes the scheduler. Hints may be lost: receivers read the truth from the database.

Nothing here blocks or fails its caller: messages are sent by one background thread with its own event loop and its own
connections. If Redis is down, this costs one log line a minute.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any

from django.conf import settings

log = logging.getLogger(__name__)

CYCLE_TASK = "scheduling.cycle"
EXPLAIN_TASK = "scheduling.explain"
SHADOW_TASK = "maintenance.shadow"
WAKE_KEY = "yard:wake"
# After a failure of Redis, cycles skip it for this many seconds.
AGAIN_S = 10.0
_blind_until = 0.0


class _Courier:
    """A daemon thread with an event loop that sends hints; created anew in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.current_thread()
        self._complained_at = 0.0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="courier", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Stop the thread and close its connections; hints on their way are dropped. Called when the process exits."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._pid != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.run_until_complete(self._drop(asyncio.all_tasks(loop)))
        loop.close()  # the channel layer closes its connections with it
        if client := _clearing.pop(os.getpid(), None):
            client.close()

    @staticmethod
    async def _drop(left: set[asyncio.Task[Any]]) -> None:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if client := _redis.pop(os.getpid(), None):
            await client.aclose()

    def carry(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(self._quietly(what), self.loop())

    async def _quietly(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(2):
                await what
        except Exception as error:  # noqa: BLE001  a hint that cannot be sent is nothing: timers and polls cover for it
            if time.monotonic() - self._complained_at > 60:
                self._complained_at = time.monotonic()
                log.warning("a hint could not be sent (%s): screens poll, the scheduler looks every 2 s", error)


_courier = _Courier()
atexit.register(_courier.close)


async def _send(group: str, message: dict[str, Any]) -> None:
    from channels.layers import get_channel_layer

    await get_channel_layer().group_send(group, message)


def counter(name: str) -> str:
    """Return the Redis key of a change counter: ``samples`` for measurements, ``facts`` for everything else."""
    return f"yard:changes:{name}"


async def _announce(keys: list[str]) -> None:
    # Counted before it is sent: a receiver finds the count that includes this change.
    names = {"samples" if key == "samples" else "facts" for key in keys}
    redis = _client()
    for name in names:
        await redis.incr(counter(name))
    await _send("changes", {"type": "changed", "keys": keys})


def announce(*keys: str) -> None:
    """Notify browsers' sockets that these keys have changed: ``jobs``, ``job:12``, ``fleet``, ``samples``."""
    _courier.carry(_announce(list(keys)))


def nudge(node_ids: list[str]) -> None:
    """Ask the sockets of these nodes to send a fresh Desired."""
    for node_id in node_ids:
        _courier.carry(_send(f"node.{node_id}", {"type": "nudge"}))


def recheck(node_ids: list[str]) -> None:
    """Ask the sockets of these nodes to check at once whether their credential is still valid."""
    for node_id in node_ids:
        _courier.carry(_send(f"node.{node_id}", {"type": "recheck"}))


def wake() -> None:
    """Request a scheduling cycle soon. Requests before the next cycle are merged."""
    _courier.carry(_wake())


# Clients by process: one for the courier's event loop, one for the cycles' ``clear_wake``.
_redis: dict[int, Any] = {}
_clearing: dict[int, Any] = {}


def _client() -> Any:
    """Return the courier's Redis client; only its event loop uses it."""
    from redis.asyncio import Redis

    client = _redis.get(os.getpid())
    if client is None:
        client = _redis[os.getpid()] = Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    return client


async def _wake() -> None:
    if await _client().set(WAKE_KEY, b"1", nx=True, px=3000):
        await asyncio.get_running_loop().run_in_executor(None, _send_task, CYCLE_TASK)


def explain() -> None:
    """Ask the scheduler to compute the reasons for waiting of some more stages."""
    _courier.carry(_explain())


async def _explain() -> None:
    await asyncio.get_running_loop().run_in_executor(None, _send_task, EXPLAIN_TASK)


def _send_task(name: str) -> None:
    from controlplane.celery import app

    app.send_task(name, retry=False, expires=10)


def request_shadows(decision_id: int) -> None:
    """Ask a worker to evaluate the shadow profiles for this decision."""
    from controlplane.celery import app

    app.send_task(SHADOW_TASK, (decision_id,), retry=False, expires=60)


def clear_wake() -> None:
    """Clear the wake mark at the start of a cycle, so that later changes wake the next cycle."""
    global _blind_until
    from redis import Redis

    if time.monotonic() < _blind_until:
        return
    try:
        client = _clearing.get(os.getpid())
        if client is None:
            client = _clearing[os.getpid()] = Redis.from_url(settings.REDIS_URL, socket_timeout=1)
        client.delete(WAKE_KEY)
    except Exception:  # the key expires by itself
        _blind_until = time.monotonic() + AGAIN_S
        log.debug("the wake mark could not be cleared", exc_info=True)
