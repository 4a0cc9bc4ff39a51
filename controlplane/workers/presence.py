"""Which workers are there: each writes its name and its queues to Redis every few seconds, and what it wrote expires.

So it says the one thing that matters of a worker, that it reaches the broker and its main loop goes round.
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
    """A worker as it wrote itself down. One that stands by takes its queues when another ends."""

    name: str
    queues: tuple[str, ...]
    stands_by: bool


def write(worker: WorkerPresence, redis: Redis) -> None:
    """Writes a worker down for :data:`GONE_S` seconds, and renews the file that a check of health looks at."""
    told = json.dumps({"queues": worker.queues, "stands_by": worker.stands_by})
    redis.set(f"{KEY}{worker.name}", told, ex=GONE_S)
    if settings.ALIVE_FILE:
        Path(settings.ALIVE_FILE).touch()


def erase(name: str, redis: Redis) -> None:
    """Takes a worker that ends in order off the list."""
    redis.delete(f"{KEY}{name}")


def workers(redis: Redis) -> list[WorkerPresence]:
    """Those that are there, by name."""
    found = []
    for key in sorted(redis.scan_iter(f"{KEY}*", count=1000)):
        if (told := redis.get(key)) is not None:
            said = json.loads(told)
            name = key.decode().removeprefix(KEY)
            found.append(WorkerPresence(name, tuple(said["queues"]), said["stands_by"]))
    return found


def connect() -> Redis:
    """A connection that no dead Redis holds up for long."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


class Presence(bootsteps.StartStopStep):
    """Writes a started worker down, from its main loop. A leader looks whether it still is one."""

    requires = (Connection,)
    leader: Leader | None = None
    queues: tuple[str, ...] = ()

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._worker = WorkerPresence(consumer.hostname, self.queues, stands_by=False)
        self._redis = connect()
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        self._tell()
        self._timer = consumer.timer.call_repeatedly(EVERY_S, self._tell)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self, consumer: Any) -> None:
        self.stop(consumer)
        with contextlib.suppress(RedisError):
            erase(self._worker.name, self._redis)

    def _tell(self) -> None:
        write(self._worker, self._redis)
        if self.leader is not None:
            self.leader.check()
