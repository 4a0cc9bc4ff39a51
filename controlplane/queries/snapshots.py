"""Shared snapshots for many browsers: one per change, audience and language, shared by all processes in Redis.

The first reader that finds a snapshot older than the last change makes the next one while all others wait for it. A
lock ensures this, and is then held for the minimum interval of the source. A snapshot consists of parts, each a JSON
text. Snapshots are numbered and stored with the differences from the previous one: a browser that has that one gets
only the differences, and one that missed some gets the whole. All keys expire. Without Redis each process makes its own
snapshots.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from django.conf import settings
from django.utils import timezone, translation
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from controlplane import changes
from controlplane.accounts import permissions
from controlplane.accounts.models import User

Parts = Mapping[str, str]

# A snapshot is made again after this time even without a change, because notifications may be lost and times pass.
SAFETY_S: Final = 8.0
KEEP_S: Final = 60.0
MAKING_S: Final = 30.0
LOOK_S: Final = 0.05
PATIENCE_S: Final = 10.0
# A browser that is further behind gets the whole.
MOST_DELTAS: Final = 16
_MAKING, _RESTING = b"making", b"resting"
_clients: dict[int, Redis] = {}


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A source of snapshots at ``topic``; ``make`` returns its parts for a user. ``counters`` name the changes that it
    depends on. With ``is_for_all`` every signed-in user sees the same. Snapshots are at least ``every_s`` seconds
    apart."""

    topic: str
    make: Callable[[User], Parts]
    counters: tuple[str, ...]
    is_for_all: bool = False
    every_s: float = 1.0


class SharedSnapshot(msgspec.Struct, frozen=True):
    """The parts as they are after ``version`` changes. ``seq`` counts within ``epoch``."""

    epoch: str
    seq: int
    version: list[int]
    parts: dict[str, msgspec.Raw]

    @property
    def cursor(self) -> str:
        """The identifier of this snapshot for browsers."""
        return f"{self.epoch}.{self.seq}"


class _Head(msgspec.Struct, frozen=True):
    epoch: str
    seq: int
    version: list[int]


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="delta"):
    """A message to a browser: the parts that differ from snapshot ``since``, or all if that is empty; ``gone`` names
    removed parts."""

    topic: str
    to: str
    parts: dict[str, msgspec.Raw]
    since: str = ""
    gone: list[str] = []


class AudienceChanged(Exception):
    """The permissions of the snapshot's user changed, so the snapshot can no longer be shared with its audience."""


@dataclass(slots=True)
class Shared:
    """One source for one audience and language: the newest snapshot in this process."""

    source: TopicSource
    user: User
    language: str
    key: str
    snapshot: SharedSnapshot | None = None
    # By the cursor that a delta starts from.
    deltas: dict[str, Delta] = field(default_factory=dict)

    @classmethod
    def of(cls, source: TopicSource, user: User) -> Shared:
        """The source as this user sees it, in the current language."""
        language = translation.get_language() or settings.LANGUAGE_CODE
        return cls(source, user, language, key_of(source, user, language))

    def look(self) -> float:
        """Update the snapshot unless another process does so, and return after how many seconds to look again: 0 if it
        is as new as the last change.

        Blocks for Redis and the database; raises :class:`AudienceChanged`.
        """
        try:
            return self._look(_redis())
        except RedisError:
            self._take(self._made([]))
            return 0.0

    def now(self) -> SharedSnapshot:
        """The snapshot, at most one interval of its source old; waits if another process makes the first one."""
        until = time.monotonic() + PATIENCE_S
        while True:
            again_s = self.look()
            if self.snapshot is not None:
                return self.snapshot
            if time.monotonic() > until:
                self._take(self._made([]))
            else:
                time.sleep(min(again_s, LOOK_S))

    def since(self, cursor: str) -> list[Delta]:
        """The messages from that cursor to the newest snapshot: none, some deltas, or the whole."""
        if self.snapshot is None or cursor == self.snapshot.cursor:
            return []
        found: list[Delta] = []
        at = cursor
        while at != self.snapshot.cursor:
            delta = self.deltas.get(at)
            if delta is None or len(found) == MOST_DELTAS:
                return [self.whole()]
            found.append(delta)
            at = delta.to
        return found

    def poll(self, cursor: str) -> list[Delta]:
        """Like :func:`since` for a single request: also reads the deltas that other processes stored."""
        now = self.now()
        epoch, _dot, seq = cursor.rpartition(".")
        if epoch == now.epoch and seq.isdecimal() and 0 < now.seq - int(seq) <= MOST_DELTAS:
            names = [self._name(f"{epoch}.{number}") for number in range(int(seq), now.seq)]
            try:
                stored: Any = _redis().mget(names)
            except RedisError:
                stored = []
            for content in filter(None, stored):
                self._keep(msgspec.json.decode(content, type=Delta))
        return self.since(cursor)

    def whole(self) -> Delta:
        """All parts of the newest snapshot."""
        assert self.snapshot is not None, "it is asked for after a look"
        return Delta(self.source.topic, self.snapshot.cursor, self.snapshot.parts)

    # ---- Redis ----

    def _name(self, what: str) -> str:
        return f"yard:live:{self.key}:{what}"

    def _look(self, redis: Redis) -> float:
        names = [changes.counter(name) for name in self.source.counters]
        found: Any = redis.mget([*names, self._name("head"), self._name("fresh")])
        wanted, (stored, is_fresh) = [int(value or 0) for value in found[:-2]], found[-2:]
        if stored:
            head = msgspec.json.decode(stored, type=_Head)
            self._follow(redis, head)
            if is_fresh and all(has >= wants for has, wants in zip(head.version, wanted, strict=True)):
                return 0.0
        lock = self._name("lock")
        if not redis.set(lock, _MAKING, nx=True, px=round(MAKING_S * 1000)):
            if redis.get(lock) != _RESTING:
                return LOOK_S
            return max(LOOK_S, int(redis.pttl(lock)) / 1000)
        began = time.monotonic()
        try:
            self._publish(redis, wanted)
        except BaseException:
            redis.delete(lock)
            raise
        # The interval counts from the start, but is never shorter than making took, so that other work gets the
        # machine.
        took_s = time.monotonic() - began
        rest_s = max(self.source.every_s - took_s, took_s, 0.02)
        redis.set(lock, _RESTING, px=round(rest_s * 1000))
        return 0.0

    def _publish(self, redis: Redis, version: list[int]) -> None:
        """Make the next snapshot and store it for all processes."""
        made = self._made(version)
        self._take(made)
        head = _Head(made.epoch, made.seq, made.version)
        pipeline = redis.pipeline(transaction=True)
        pipeline.set(self._name("whole"), msgspec.json.encode(made), px=round(KEEP_S * 1000))
        for since, delta in self.deltas.items():
            if delta.to == made.cursor:
                pipeline.set(self._name(since), msgspec.json.encode(delta), px=round(KEEP_S * 1000))
        pipeline.set(self._name("head"), msgspec.json.encode(head), px=round(KEEP_S * 1000))
        pipeline.set(self._name("fresh"), b"1", px=round(max(SAFETY_S, 3 * self.source.every_s) * 1000))
        pipeline.execute()

    def _follow(self, redis: Redis, head: _Head) -> None:
        """Take over a snapshot that another process made: by its delta, or whole if that is missing."""
        known = self.snapshot
        if known is not None and (known.epoch, known.seq) == (head.epoch, head.seq):
            return
        if known is not None and known.epoch == head.epoch and 0 < head.seq - known.seq <= MOST_DELTAS:
            numbers = range(known.seq, head.seq)
            stored: Any = redis.mget([self._name(f"{head.epoch}.{seq}") for seq in numbers])
            if all(stored):
                for content in stored:
                    self._apply(msgspec.json.decode(content, type=Delta), head)
                return
        whole = redis.get(self._name("whole"))
        if whole:  # otherwise it has expired, and the next look makes it again
            self.snapshot = msgspec.json.decode(whole, type=SharedSnapshot)
            self.deltas.clear()

    def _apply(self, delta: Delta, head: _Head) -> None:
        assert self.snapshot is not None
        parts = {name: part for name, part in self.snapshot.parts.items() if name not in delta.gone} | delta.parts
        epoch, _dot, seq = delta.to.rpartition(".")
        self.snapshot = SharedSnapshot(epoch, int(seq), head.version, parts)
        self._keep(delta)

    # ---- making ----

    def _made(self, version: list[int]) -> SharedSnapshot:
        before = self.snapshot
        # It is shared by all users, so times are in UTC; scripts turn them into each reader's zone.
        with translation.override(self.language), timezone.override(None):
            parts = self.source.make(self.user)
        if key_of(self.source, self.user, self.language) != self.key:
            raise AudienceChanged
        raw = {name: msgspec.Raw(text.encode()) for name, text in parts.items()}
        epoch, seq = (before.epoch, before.seq) if before else (secrets.token_hex(4), 0)
        if before is None or raw != before.parts:
            seq += 1
        return SharedSnapshot(epoch, seq, version, raw)

    def _take(self, made: SharedSnapshot) -> None:
        """Record the delta from the previous snapshot to this one, if they differ."""
        before, self.snapshot = self.snapshot, made
        if before is None or before.cursor == made.cursor:
            return
        changed = {name: part for name, part in made.parts.items() if before.parts.get(name) != part}
        gone = [name for name in before.parts if name not in made.parts]
        self._keep(Delta(self.source.topic, made.cursor, changed, before.cursor, gone))

    def _keep(self, delta: Delta) -> None:
        self.deltas[delta.since] = delta
        while len(self.deltas) > MOST_DELTAS:
            del self.deltas[next(iter(self.deltas))]


def key_of(source: TopicSource, user: User, language: str) -> str:
    """The identifier of a source, its audience and its language. Reads the user's projects."""
    audience = ["everybody"] if source.is_for_all else permissions.audience(user)
    seen = msgspec.json.encode([source.topic, audience, language, settings.VERSION])
    return hashlib.sha256(seen).hexdigest()[:32]


def _redis() -> Redis:
    client = _clients.get(os.getpid())
    if client is None:
        # A reader waits for the page, so there is no second try.
        once = Retry(NoBackoff(), 0)
        client = _clients[os.getpid()] = Redis.from_url(
            settings.REDIS_URL, socket_timeout=2.0, socket_connect_timeout=2.0, retry=once
        )
    return client
