"""The WebSocket of browsers: one per tab, on which REST paths are watched.

A browser names the paths it shows; the server answers with what a GET would return, at once and whenever that has
changed. Hints from the channel layer say what to read again; a slow poll of everything covers for lost hints, so
without Redis updates are slower and nothing else changes. Snapshots that many share are made once for all of them
(``queries.snapshots``), and each tab gets the difference from what it has. What a user may see is decided by the same
code as over REST, at every read. Once a second the session and the rights of its user are checked
(``socket_authorization``): a socket is closed if its session ended, or if its user was made inactive or has another
password; if rights changed, every topic is read again with the new ones.

    -> {"op": "sub", "topic": "/api/v1/jobs/12", "etag": "...", "want": "data" | "etag"}
    -> {"op": "unsub", "topic": ...}
    <- {"kind": "snapshot", "topic": ..., "seq": 3, "etag": "...", "data": {...}}
    <- {"kind": "changed", "topic": ..., "seq": 3, "etag": "..."}          if only the change was wanted
    -> {"op": "sub", "topic": "/overview/map", "since": "4f1c2a9b.17"}    a shared snapshot
    <- {"kind": "delta", "topic": ..., "since": "4f1c2a9b.17", "to": "4f1c2a9b.18", "parts": {...}, "gone": [...]}
                                           without "since" these are all parts
    <- {"kind": "error", "topic": ..., "status": 404}
    <- {"kind": "beat", "late_s": 0}       the connection is alive; ``late_s`` is how long the oldest read is overdue
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, QueryDict
from django.utils import translation

from controlplane.accounts.rights import Rights, rights
from controlplane.counted import counter
from controlplane.live.feeds import Feed, feeds, sources
from controlplane.queries.snapshots import TopicSource
from controlplane.socket_authorization import AuthorizationWatch
from controlplane.wellformed import fault_in, fault_of_query

log = logging.getLogger(__name__)

PREFIX = "/api/v1/"
MAX_TOPICS = 20
MAX_TOPIC_LENGTH = 500
MAX_MESSAGE_LENGTH = 4_000
AGAIN_S = 1.0
SAFETY_S = 8.0
# How often the audience of shared snapshots is determined again, besides every change of rights.
AUDIENCE_S = 60.0
# A browser that receives nothing for a little more than twice this shows that it is not live.
BEAT_S = 2.0
CLOSE_UNAUTHENTICATED = 4401
CLOSE_UNREADABLE = 4400
CLOSE_TOO_MANY = 4429
_rights: AuthorizationWatch[tuple[str, int], Rights] = AuthorizationWatch(rights)


@dataclass(slots=True)
class Topic:
    """One watched path. ``due_at`` is the time of its next read, on the monotonic clock."""

    wants_data: bool
    etag: str
    seq: int = 0
    read_at: float = 0.0
    due_at: float = 0.0
    asked_again: bool = False
    failed: int = 0
    # For a shared snapshot: its source, its feed, and the cursor of what the browser has.
    source: TopicSource | None = None
    feed: Feed | None = None
    cursor: str = ""


def touched(path: str, keys: Iterable[str]) -> bool:
    """Whether a change of any of these keys may change the answer at ``path``; true in doubt."""
    resource, _, rest = path.removeprefix(PREFIX).partition("?")[0].partition("/")
    number, _, leaf = rest.partition("/")
    for key in keys:
        name, _, of = key.partition(":")
        match resource:
            case "jobs" if not rest:
                hit = name in {"jobs", "job"}
            case "jobs":
                same = not number.isdigit() or not of or of == number
                measured = {"samples", "job"}
                by_leaf = {"metrics": measured, "attempts": measured, "streams": {"logs", "job"}, "logs": {"logs"}}
                hit = name in by_leaf.get(leaf, {"job"}) and same
            case "overview" | "nodes" | "devices":
                hit = name in {"jobs", "job", "fleet", "samples"}
            case "timeline" | "decisions":
                hit = name in {"jobs", "job", "fleet", "timeline"}
            case "simulations":
                hit = name == "simulations"
            case "operations":
                hit = name in {"jobs", "operations"}
            case "profiles":
                hit = name in {"profiles", "simulations"}
            case "pools":
                hit = name in {"jobs", "fleet", "profiles"}
            case _:
                hit = name in {"jobs", "fleet"}
        if hit:
            return True
    return False


def _look(path: str, user: Any) -> tuple[int, str, bytes]:
    """Read a path in a separate thread, which keeps no database connection afterwards."""
    from controlplane.api.live import read

    try:
        return read(path, user)
    finally:
        connections.close_all()


def _language(scope: Any) -> str:
    """Return the language of the page that opened the socket: as the page says it, else as a request would be read.

    Browsers need not send the preferences of their pages with a socket.
    """
    said = QueryDict(scope.get("query_string", b"")[:100]).get("lang", "")
    if said in dict(settings.LANGUAGES):
        return said
    request = HttpRequest()
    request.COOKIES = scope.get("cookies") or {}
    for name, value in scope["headers"]:
        if name == b"accept-language":
            request.META["HTTP_ACCEPT_LANGUAGE"] = value.decode("latin-1")
    return translation.get_language_from_request(request)


def _first(key: tuple[str, int]) -> Rights | None:
    try:
        return rights({key}).get(key)
    finally:
        connections.close_all()


class BrowserFeed(AsyncJsonWebsocketConsumer):
    """The socket of one tab. It has at most ``MAX_TOPICS`` topics, each read at most once a second, one at a time."""

    async def connect(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.stir = asyncio.Event()
        self.looking: asyncio.Task[None] | None = None
        self.beating: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None
        await self.accept()
        user, session = self.scope.get("user"), self.scope.get("session")
        key = (getattr(session, "session_key", None) or "", getattr(user, "pk", None) or 0)
        found = await sync_to_async(_first, thread_sensitive=False)(key)
        if found is None or user is None or found.password != user.password:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        if sum(user_id == key[1] for _session, user_id in _rights.watched()) >= settings.SOCKETS_PER_USER:
            await self.close(CLOSE_TOO_MANY)
            return
        self.rights, self.scope["user"] = found, found.user
        self.language = _language(self.scope)
        feeds().hints.enter(self._hinted)
        _rights.enter(self, key, self._judge)
        counter.socket_opened()
        self.looking = asyncio.create_task(self._keep_looking())
        self.beating = asyncio.create_task(self._keep_beating())

    def _judge(self, found: Rights | None) -> None:
        """Close the socket of a user who is no longer signed in; read all topics again if the user's rights changed."""
        if found is None or found.password != self.rights.password:
            self.ending = self.ending or asyncio.create_task(self._end())
        elif found != self.rights:
            self.rights, self.scope["user"] = found, found.user
            for topic in self.topics.values():
                topic.due_at = 0.0
            self.stir.set()

    async def _end(self) -> None:
        for task in (self.looking, self.beating):
            if task:
                task.cancel()
        with contextlib.suppress(Exception):  # it may be closed already
            await self.close(CLOSE_UNAUTHENTICATED)

    async def disconnect(self, code: int) -> None:
        await _rights.leave(self)
        if self.looking:
            counter.socket_closed()
        for task in (self.looking, self.beating):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for topic in self.topics.values():
            if topic.feed:
                await topic.feed.leave(self.stir.set)
        await feeds().hints.leave(self._hinted)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Read a message. The socket is closed for one that no page sends: too long, or binary."""
        if not text_data or len(text_data) > MAX_MESSAGE_LENGTH:
            await self.close(CLOSE_UNREADABLE)
        else:
            await super().receive(text_data=text_data, **kwargs)

    async def receive_json(self, content: Any, **_: Any) -> None:
        if not isinstance(content, dict) or self.looking is None:
            return
        topic = content.get("topic")
        known = sources()
        is_path = isinstance(topic, str) and (topic.startswith(PREFIX) or topic in known)
        if not isinstance(topic, str) or not is_path or len(topic) > MAX_TOPIC_LENGTH:
            await self._refuse(topic, f"a topic is a path below {PREFIX}")
        elif fault := fault_in(topic) or fault_of_query(topic.partition("?")[2]):
            await self._refuse(topic, f"the topic cannot be read: {fault}")
        elif content.get("op") == "unsub":
            left = self.topics.pop(topic, None)
            if left and left.feed:
                await left.feed.leave(self.stir.set)
        elif content.get("op") == "sub":
            if topic not in self.topics and len(self.topics) >= MAX_TOPICS:
                await self._refuse(topic, f"one socket watches at most {MAX_TOPICS} topics")
                return
            etag, since, before = content.get("etag"), content.get("since"), self.topics.get(topic)
            self.topics[topic] = Topic(
                content.get("want") != "etag",
                etag if isinstance(etag, str) else "",
                source=known.get(topic),
                feed=before.feed if before else None,
                cursor=since if isinstance(since, str) else "",
            )
            self.stir.set()

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return json.loads(text_data)
        except (ValueError, RecursionError):
            return None

    def _hinted(self, keys: list[str]) -> None:
        """Schedule reads of the topics that a hint may concern, at least a second after their last read."""
        now = time.monotonic()
        for path, topic in self.topics.items():
            if topic.source is None and touched(path, keys):
                topic.asked_again = True
                topic.due_at = min(topic.due_at, max(now, topic.read_at + AGAIN_S))
                self.stir.set()

    async def _refuse(self, topic: Any, text: str) -> None:
        await self.send_json({"kind": "error", "topic": str(topic)[:MAX_TOPIC_LENGTH], "status": 400, "text": text})

    async def _keep_looking(self) -> None:
        """Read each topic when it is due."""
        try:
            await self._loop()
        except asyncio.CancelledError:
            raise
        except Exception:  # a send on a socket that was just closed; the browser reconnects by itself
            log.debug("a browser's feed ended", exc_info=True)
            with contextlib.suppress(Exception):
                await self.close()

    async def _keep_beating(self) -> None:
        """Send beats with the delay of the oldest overdue read, also while a read takes long."""
        with contextlib.suppress(Exception):  # a send on a socket that was just closed
            while True:
                due = [topic.feed.due_at if topic.feed else topic.due_at for topic in self.topics.values()]
                late_s = time.monotonic() - min([time.monotonic(), *(at for at in due if at)])
                await self.send_json({"kind": "beat", "late_s": round(late_s, 1)})
                await asyncio.sleep(BEAT_S)

    async def _loop(self) -> None:
        while True:
            now = time.monotonic()
            for path, topic in list(self.topics.items()):
                if topic.source is not None:
                    await self._pass_on(topic, topic.source)
                elif topic.due_at <= now:
                    await self._send_topic(path)
            next_at = min([now + SAFETY_S, *(topic.due_at for topic in self.topics.values())])
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, next_at - time.monotonic())):
                    await self.stir.wait()
            self.stir.clear()

    async def _pass_on(self, topic: Topic, source: TopicSource) -> None:
        """Send the changes of a shared snapshot that this browser lacks; a slow browser gets fewer, larger ones."""
        now = time.monotonic()
        if topic.feed is None or topic.feed.is_closed or topic.due_at <= now:
            topic.due_at = now + AUDIENCE_S
            feed = await feeds().of(source, self.scope["user"], self.language)
            if feed is not topic.feed:
                if topic.feed:
                    await topic.feed.leave(self.stir.set)
                topic.feed = feed
                feed.enter(self.stir.set)
        for delta in topic.feed.since(topic.cursor):
            topic.cursor = delta.to
            await self.send(text_data=msgspec.json.encode(delta).decode())

    async def _send_topic(self, path: str) -> None:
        """Read one topic, and send it if it is new to this browser."""
        topic = self.topics.get(path)
        if topic is None:
            return
        topic.read_at = time.monotonic()
        # Due until it is answered, so that a beat can report the delay; a hint meanwhile requests another read.
        topic.due_at, topic.asked_again = topic.read_at, False
        user = self.scope["user"]
        try:
            status, etag, content = await sync_to_async(_look, thread_sensitive=False)(path, user)
        except Exception:  # one broken resource must not end the connection for the others
            log.exception("reading %s for a browser failed", path)
            status, etag, content = 500, "", b""
        topic.due_at = topic.read_at + (AGAIN_S if topic.asked_again else SAFETY_S)
        if self.topics.get(path) is not topic:
            return
        if user is not self.scope["user"]:  # read with outdated rights
            topic.due_at = 0.0
            return
        if status != 200:
            if topic.failed != status:
                await self.send_json({"kind": "error", "topic": path, "status": status})
            topic.failed = status
            return
        topic.failed = 0
        if etag == topic.etag:
            return
        topic.etag, topic.seq = etag, topic.seq + 1
        told = {"kind": "changed", "topic": path, "seq": topic.seq, "etag": etag}
        if topic.wants_data:
            # The body is JSON already: it is inserted as it is, not parsed and serialized again.
            head = json.dumps(told | {"kind": "snapshot"})[:-1]
            await self.send(text_data=f'{head}, "data": {content.decode()}}}')
        else:
            await self.send_json(told)
