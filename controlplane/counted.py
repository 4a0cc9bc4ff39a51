"""Counts what this process does (requests, scheduling cycles, open sockets) in Redis, for all processes together.

A process adds up what it did and sends the sums every few seconds from a thread of its own, so counting costs a request
nothing but an addition, and a process that ends takes at most its last seconds along. ``/metrics`` of every server
reads the same sums. Redis that was emptied begins again at 0, as Prometheus expects of counters that restart.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

log = logging.getLogger(__name__)

KEY: Final = "yard:counted:1"
SOCKETS: Final = "yard:sockets"
EVERY_S: Final = 5.0
# A process that has not told for so long how many sockets it has is gone.
GONE_S: Final = 20
# Sums of one process between two sends; more sorts than the code can name are a fault, and dropped.
MOST_SORTS: Final = 20_000
# Upper bounds in seconds, inclusive; the last bucket has none.
REQUEST_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CYCLE_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

Sort = tuple[str, ...]


@dataclass(slots=True)
class Sum:
    """How often something of a sort was measured, and the sum of what was."""

    count: int = 0
    amount: float = 0.0


class Counter:
    """The sums of one process that are not sent yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Sort, Sum] = {}
        self._sockets = 0
        self._had_sockets = False
        self._pid = 0
        self._complained_at = float("-inf")

    def observe(self, series: str, labels: Sequence[str], value: float, bounds: Sequence[float]) -> None:
        """Count a measured value in its bucket of a histogram."""
        bucket = sum(bound < value for bound in bounds)
        sort = (series, *labels, str(bucket))
        with self._lock:
            one = self._sums.get(sort)
            if one is None:
                if len(self._sums) >= MOST_SORTS:
                    return
                one = self._sums[sort] = Sum()
            one.count += 1
            one.amount += value
        self._begin()

    def socket_opened(self) -> None:
        """Count a browser's socket as open, until :meth:`socket_closed`."""
        with self._lock:
            self._sockets += 1
        self._begin()

    def socket_closed(self) -> None:
        with self._lock:
            self._sockets -= 1

    def _begin(self) -> None:
        if self._pid != os.getpid():
            with self._lock:
                if self._pid == os.getpid():
                    return
                self._pid = os.getpid()
            threading.Thread(target=self._work, name="counted", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(EVERY_S)
            self.send()

    def send(self, is_last: bool = False) -> None:
        """Add the sums to those in Redis. What cannot be sent is kept, unless it may have arrived."""
        with self._lock:
            sums, self._sums = self._sums, {}
            sockets = self._sockets
            tells = sockets > 0 or self._had_sockets
            self._had_sockets = sockets > 0
        if not sums and not tells:
            return
        try:
            with connect() as redis, redis.pipeline(transaction=True) as pipe:
                for sort, one in sums.items():
                    name = msgspec.json.encode(sort).decode()
                    pipe.hincrby(KEY, name, one.count)
                    pipe.hincrbyfloat(f"{KEY}:sum", name, one.amount)
                if tells:
                    me = f"{socket.gethostname()}:{os.getpid()}"
                    pipe.sadd(SOCKETS, me)
                    pipe.set(f"{SOCKETS}:{me}", sockets, ex=GONE_S)
                pipe.execute()
        except (RedisError, OSError) as error:
            if not isinstance(error, RedisTimeout):
                self._keep(sums)
            if not is_last and time.monotonic() - self._complained_at > 60:
                self._complained_at = time.monotonic()
                log.warning("what was counted could not be sent: %s", error)

    def _keep(self, sums: dict[Sort, Sum]) -> None:
        with self._lock:
            for sort, one in sums.items():
                if sort in self._sums or len(self._sums) < MOST_SORTS:
                    kept = self._sums.setdefault(sort, Sum())
                    kept.count += one.count
                    kept.amount += one.amount


def connect() -> Redis:
    """Return a connection that waits for nobody for long."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def sums(redis: Redis) -> dict[Sort, Sum]:
    """Return what all processes have counted and sent."""
    pipe = redis.pipeline(transaction=True)
    pipe.hgetall(KEY)
    pipe.hgetall(f"{KEY}:sum")
    counts, amounts = pipe.execute()
    return {
        msgspec.json.decode(name, type=Sort): Sum(int(count), float(amounts.get(name, 0.0)))
        for name, count in counts.items()
    }


def open_sockets(redis: Redis) -> int:
    """Return how many sockets of browsers the servers have open; a server that went away has none."""
    servers: list[bytes] = sorted(redis.smembers(SOCKETS))  # type: ignore[arg-type]  # nothing decodes here
    if not servers:
        return 0
    told: list[Any] = redis.mget([f"{SOCKETS}:{one.decode()}" for one in servers])
    if gone := [one for one, count in zip(servers, told, strict=True) if count is None]:
        redis.srem(SOCKETS, *gone)
    return sum(int(count) for count in told if count is not None)


counter = Counter()
atexit.register(counter.send, is_last=True)
