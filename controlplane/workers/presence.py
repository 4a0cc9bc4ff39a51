"""Lists the running workers: each writes its name and its queues to Redis every few seconds, with an expiry.

An entry therefore shows that the worker reaches the broker and that its main loop runs.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from celery import bootsteps
from celery.worker.consumer.connection import Connection
from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from controlplane.workers.leader import Leader

KEY: Final = "yard:worker:"
EVERY_S: Final = 4.0
GONE_S: Final = 15


@dataclass(frozen=True, slots=True)
class WorkerPresence:
    """The entry of a worker. A standby takes its queues when another worker ends."""

    name: str
    queues: tuple[str, ...]
    stands_by: bool


def write(worker: WorkerPresence, redis: Redis) -> None:
    """Write a worker's entry for :data:`GONE_S` seconds, and touch the file of the health check."""
    told = json.dumps({"queues": worker.queues, "stands_by": worker.stands_by})
    redis.set(f"{KEY}{worker.name}", told, ex=GONE_S)
    if settings.ALIVE_FILE:
        Path(settings.ALIVE_FILE).touch()


def erase(name: str, redis: Redis) -> None:
    """Remove the entry of a worker that shuts down."""
    redis.delete(f"{KEY}{name}")


def workers(redis: Redis) -> list[WorkerPresence]:
    """Return the running workers by name."""
    found = []
    for key in sorted(redis.scan_iter(f"{KEY}*", count=1000)):
        if (told := redis.get(key)) is not None:
            said = json.loads(told)
            name = key.decode().removeprefix(KEY)
            found.append(WorkerPresence(name, tuple(said["queues"]), said["stands_by"]))
    return found


def connect() -> Redis:
    """Return a connection with short timeouts, so that a dead Redis blocks nobody for long."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


class Presence(bootsteps.StartStopStep):
    """Writes the entry of a started worker from its main loop. A leader also checks its lock."""

    requires = (Connection,)
    leader: Leader | None = None
    queues: tuple[str, ...] = ()

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._worker = WorkerPresence(consumer.hostname, self.queues, stands_by=False)
        self._redis = connect()
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        self._renew()
        self._timer = consumer.timer.call_repeatedly(EVERY_S, self._renew)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self, consumer: Any) -> None:
        self.stop(consumer)
        with contextlib.suppress(RedisError):
            erase(self._worker.name, self._redis)

    def _renew(self) -> None:
        write(self._worker, self._redis)
        if self.leader is not None:
            self.leader.check()
