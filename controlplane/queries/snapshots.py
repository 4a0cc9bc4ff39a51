"""Shared snapshots for many browsers: one per change, audience and language, shared by all processes in Redis.

The first reader that finds a snapshot older than the last change makes the next one while everybody else waits for it;
a lock ensures this, and is then held for the minimum interval of the source. A snapshot consists of parts, each a JSON
text. Each snapshot has a number and the differences from the one before, so that a browser that has that one gets only
the differences, and a browser that missed some gets the whole. All keys expire. Without Redis each process makes its
own snapshots.
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

# A snapshot is made anew after so long without a hint, because hints may be lost and times pass.
SAFETY_S: Final = 8.0
KEEP_S: Final = 60.0
MAKING_S: Final = 30.0
LOOK_S: Final = 0.05
PATIENCE_S: Final = 10.0
# Who is so many behind gets the whole.
MOST_DELTAS: Final = 16
_MAKING, _RESTING = b"making", b"resting"
_clients: dict[int, Redis] = {}


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Something to watch at ``topic``, whose parts ``make`` finds for a user. ``counters`` name the changes that it
    depends on. Where ``is_for_all``, every signed-in user sees the same. Between two snapshots lie ``every_s`` seconds
    at least."""

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
        """What names this snapshot to a browser."""
        return f"{self.epoch}.{self.seq}"


class _Head(msgspec.Struct, frozen=True):
    epoch: str
    seq: int
    version: list[int]


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="delta"):
    """What a browser is sent: the parts that differ from snapshot ``since``, or all where that is empty; ``gone`` names
    parts that are no more."""

    topic: str
    to: str
    parts: dict[str, msgspec.Raw]
    since: str = ""
    gone: list[str] = []


class AudienceChanged(Exception):
    """Whom a snapshot is made for sees something else than those with whom it is shared."""


@dataclass(slots=True)
class Shared:
    """One source as one audience sees it in one language: the newest snapshot that this process knows."""

    source: TopicSource
    user: User
    language: str
    key: str
    snapshot: SharedSnapshot | None = None
    # By the cursor that a delta leads away from.
    deltas: dict[str, Delta] = field(default_factory=dict)

    @classmethod
    def of(cls, source: TopicSource, user: User) -> Shared:
        """The source as this user sees it, in the language of now."""
        language = translation.get_language() or settings.LANGUAGE_CODE
        return cls(source, user, language, key_of(source, user, language))

    def look(self) -> float:
        """Brings the snapshot up to date if nobody else does so, and returns after how many seconds to look again: 0
        where it is as new as the last change. Blocks for Redis and the database; raises :class:`AudienceChanged`."""
        try:
            return self._look(_redis())
        except RedisError:
            self._take(self._made([]))
            return 0.0

    def now(self) -> SharedSnapshot:
        """The snapshot, at most one rest of its source old; waits for whoever makes the first one."""
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
        """What leads from there to the newest snapshot: nothing, some deltas, or the whole."""
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

    def told(self, cursor: str) -> list[Delta]:
        """As :func:`since`, for one who asks once: what other processes left for whoever has this cursor is read."""
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
        # It rests from its beginning on, but never less than it took: then others have the machine too.
        took_s = time.monotonic() - began
        rest_s = max(self.source.every_s - took_s, took_s, 0.02)
        redis.set(lock, _RESTING, px=round(rest_s * 1000))
        return 0.0

    def _publish(self, redis: Redis, version: list[int]) -> None:
        """Makes the next snapshot and leaves it for everybody."""
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
        """Takes what another process made: by what differs, or whole where that is not there."""
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
        if whole:  # else it expired meanwhile, and one like it is made anew
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
        # Whoever makes it, it is everybody's: times are in UTC, which scripts turn into each reader's zone.
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
        """Notes what leads from the snapshot before to this one, if they differ."""
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
    """What names a source, who sees it, and in which language. Reads which projects the user is in."""
    audience = ["everybody"] if source.is_for_all else permissions.audience(user)
    seen = msgspec.json.encode([source.topic, audience, language, settings.VERSION])
    return hashlib.sha256(seen).hexdigest()[:32]


def _redis() -> Redis:
    client = _clients.get(os.getpid())
    if client is None:
        # Whoever waits for a page waits for no second try.
        once = Retry(NoBackoff(), 0)
        client = _clients[os.getpid()] = Redis.from_url(
            settings.REDIS_URL, socket_timeout=2.0, socket_connect_timeout=2.0, retry=once
        )
    return client
