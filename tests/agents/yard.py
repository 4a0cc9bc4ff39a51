"""A model control plane for agents: enrolment, link, logs, telemetry and bundles on one real port, kept in memory.

It speaks the wire and nothing else: what it wants is what a test put there, what it knows is what agents reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import uvicorn

from agents.protocol import (
    CLOSE_NO_SESSION,
    ENROL_PATH,
    LINK_PATH,
    LOGS_PATH,
    SESSION_PATH,
    SOURCES_PATH,
    TELEMETRY_PATH,
    TRACE_PATH,
    AsideOrder,
    AskSources,
    Desired,
    Here,
    Inventory,
    LocalAnswer,
    LocalJob,
    LogBatch,
    LogCommit,
    LogReceipt,
    OpenSession,
    PartSpec,
    Phase,
    Report,
    SessionEnd,
    SessionOrder,
    SessionWord,
    Sources,
    TelemetryBatch,
    Timers,
    TraceNews,
    TraceOrder,
    Wanted,
)

TOKEN = "join-me"


class Side:
    """What the model control plane wants of one node, and what it has heard of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.wanted: dict[str, Wanted] = {}
        self.here: dict[str, Here] = {}
        self.ended: dict[str, Here] = {}
        self.seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.inventory: Inventory | None = None
        self.report: Report | None = None
        self.telemetry: list[TelemetryBatch] = []
        self.aside: list[AsideOrder] = []
        self.socket: Callable[[str], None] | None = None
        self.connections = 0
        # The jobs that were submitted on the node, by their ids, and how often each was offered whole.
        self.local: dict[str, LocalJob] = {}
        self.offered: dict[str, int] = defaultdict(int)


class Guest:
    """Somebody inside a part: what they type goes down, what the agent sends is kept as it came."""

    def __init__(self, asked: OpenSession) -> None:
        self.asked = asked
        self.streams: dict[int, bytearray] = defaultdict(bytearray)
        self.taken = 0
        self.end: SessionEnd | None = None
        self.is_open = False
        self.is_over = False
        self.is_slow = False
        self.send: Callable[[bytes | str | None], None] = lambda message: None

    def type(self, text: bytes) -> None:
        self.send(b"\0" + text)

    def say(self, **word: Any) -> None:
        self.send(msgspec.json.encode(SessionWord(**word)).decode())

    def leave(self) -> None:
        self.send(None)

    @property
    def out(self) -> bytes:
        return bytes(self.streams[1])


class Asked:
    """A trace that somebody waits for: what the agent told of it, and the file."""

    def __init__(self) -> None:
        self.news: list[TraceNews] = []
        self.content = b""

    @property
    def is_over(self) -> bool:
        return bool(self.content) or any(each.state == "FAILED" for each in self.news)


class Yard:
    """The model. Its address is ``url``; all its state may be read and written under ``lock``."""

    def __init__(self, timers: Timers | None = None, forget: bool = True) -> None:
        self.timers = timers or Timers(report_s=1.0, telemetry_s=0.5)
        self.forget = forget
        self.lock = threading.RLock()
        self.sides: dict[str, Side] = {}
        self.credentials: dict[str, str] = {}
        # By node, what takes the place of its credential once it is used.
        self.offered: dict[str, str] = {}
        self.logs: dict[tuple[str, int, str], bytearray] = defaultdict(bytearray)
        self.bundles: dict[str, bytes] = {}
        self.guests: dict[str, Guest] = {}
        self.traces: dict[str, Asked] = {}
        self.is_deaf = False
        # Whatever is sent answers no report: as if none arrived, and orders came all the same.
        self.answers_nothing = False
        self.says_what_it_answers = True
        self.sources: Callable[[Side, AskSources], Sources] = lambda side, asked: Sources(refused="nobody has it")
        self._listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if told so
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._application, log_level="error", lifespan="off", ws="websockets-sansio", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    # -- what tests say

    def side(self, name: str) -> Side:
        """The node of this name; ``KeyError`` while it has not joined, which ``wait`` waits out."""
        return {side.name: side for side in self.sides.values()}[name]

    def want(self, name: str, *orders: Wanted) -> None:
        with self.lock:
            side = self.side(name)
            for order in orders:
                side.wanted[order.part] = order
            side.generation += 1
            if side.socket:
                side.socket(self.desired(side))

    def desired(self, side: Side, answers_seq: int | None = 0) -> str:
        forget = [part for part in side.here if part in side.ended] if self.forget else []
        wanted = [
            msgspec.structs.replace(order, spec=None) if part in side.here and order.do == "run" else order
            for part, order in side.wanted.items()
            if part not in side.ended
        ]
        message = Desired(
            generation=side.generation,
            wanted=wanted,
            forget=forget,
            timers=self.timers,
            cluster="c",
            lineage="l",
            want_inventory=side.inventory is None,
            local=self._answers(side),
            answers_seq=answers_seq if self.says_what_it_answers else None,
            credential=next((self.offered.get(node, "") for node, each in self.sides.items() if each is side), ""),
            aside=side.aside,
        )
        return msgspec.json.encode(message).decode()

    @staticmethod
    def _answers(side: Side) -> list[LocalAnswer]:
        """Take what the newest report offers, and say so."""
        answers = []
        for offer in side.report.local if side.report is not None else []:
            if offer.job is not None:
                side.local[offer.id] = offer.job
                side.offered[offer.id] += 1
            number = 100 + list(side.local).index(offer.id) if offer.id in side.local else None
            answers.append(LocalAnswer(offer.id, number, wants=number is None))
        return answers

    def wait(self, claim: Callable[[], Any], within_s: float = 60.0) -> Any:
        """Return as soon as ``claim`` holds; fail with what is known when it never does."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with self.lock, contextlib.suppress(KeyError):
                if result := claim():
                    return result
            time.sleep(0.01)
        heard = {side.name: [msgspec.to_builtins(here) for here in side.here.values()] for side in self.sides.values()}
        raise AssertionError(f"it never came to hold; the nodes reported {json.dumps(heard, indent=1)}")

    def ended(self, name: str, part: str, within_s: float = 60.0) -> Here:
        found: Here = self.wait(lambda: self.side(name).ended.get(part), within_s)
        return found

    def phase(self, name: str, part: str, phase: Phase) -> Here:
        def reached() -> Here | None:
            here = self.side(name).here.get(part)
            return here if here and here.phase >= phase else None

        found: Here = self.wait(reached)
        return found

    def enter(self, name: str, part: str, *argv: str, epoch: int = 1, **asked: Any) -> Guest:
        """Enter a part of a node with a command."""
        guest, number = Guest(OpenSession(part, epoch, list(argv), **asked)), str(uuid.uuid4())
        with self.lock:
            self.guests[number] = guest
            side = self.side(name)
            message = msgspec.json.decode(self.desired(side), type=Desired)
            assert side.socket is not None
            orders = [SessionOrder(number, part)] * 2
            side.socket(msgspec.json.encode(msgspec.structs.replace(message, sessions=orders)).decode())
        return guest

    def trace(self, name: str, part: str, tool: str, seconds: int, epoch: int = 1) -> Asked:
        """Ask for a trace of a part of a node, twice as a lost answer makes the control plane do; wait for its end."""
        asked, number = Asked(), str(uuid.uuid4())
        with self.lock:
            self.traces[number] = asked
            side = self.side(name)
            message = msgspec.json.decode(self.desired(side), type=Desired)
            assert side.socket is not None
            orders = [TraceOrder(number, part, epoch, tool, seconds)] * 2
            side.socket(msgspec.json.encode(msgspec.structs.replace(message, traces=orders)).decode())
        self.wait(lambda: asked.is_over, within_s=120)
        return asked

    # -- what agents hear

    def _take(self, side: Side, report: Report) -> None:
        side.report = report
        if report.inventory.full is not None:
            side.inventory = report.inventory.full
        side.here = {here.part: here for here in report.here}
        for here in report.here:
            seen = side.seen[here.part]
            if not seen or seen[-1][0] < here.phase:
                seen.append((here.phase, time.monotonic()))
            if here.phase == Phase.ENDED:
                side.ended.setdefault(here.part, here)

    def _who(self, scope: dict[str, Any]) -> Side | None:
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        node, _, credential = given.removeprefix("Node ").partition(":")
        with self.lock:
            if credential and self.offered.get(node) == credential:
                self.credentials[node] = self.offered.pop(node)
            return self.sides.get(node) if credential and self.credentials.get(node) == credential else None

    async def _application(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            opened = scope["path"].startswith(SESSION_PATH.format(session=""))
            await (self._session if opened else self._link)(scope, receive, send)
        elif scope["type"] == "http":
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            status, answer = self._http(scope, body)
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": answer})

    async def _link(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        side = self._who(scope)
        await send({"type": "websocket.accept"})
        if side is None or scope["path"] != LINK_PATH:
            await send({"type": "websocket.close", "code": 4001})
            return
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[str] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(outbox, send))
        with self.lock:
            side.connections += 1
            side.report, side.here = None, {}
            side.socket = lambda text: loop.call_soon_threadsafe(outbox.put_nowait, text)  # type: ignore[assignment]
        try:
            while (message := await receive())["type"] == "websocket.receive":
                if self.is_deaf:
                    continue
                with self.lock:
                    report = msgspec.json.decode(message["text"], type=Report)
                    self._take(side, report)
                    outbox.put_nowait(self.desired(side, 0 if self.answers_nothing else report.seq))
        finally:
            side.socket = None
            pump.cancel()

    async def _session(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        with self.lock:
            guest = self.guests.pop(scope["path"].rpartition("/")[2], None)
        if self._who(scope) is None or guest is None:
            await send({"type": "websocket.close", "code": CLOSE_NO_SESSION})
            return
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": msgspec.json.encode(guest.asked).decode()})
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[bytes | str | None] = asyncio.Queue()

        async def pump() -> None:
            while (message := await outbox.get()) is not None:
                await send({"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message})
            await send({"type": "websocket.close", "code": 1000})

        guest.send = lambda message: loop.call_soon_threadsafe(outbox.put_nowait, message)  # type: ignore[assignment]
        guest.is_open = True
        task = asyncio.create_task(pump())
        try:
            while (message := await receive())["type"] == "websocket.receive":
                with self.lock:
                    if raw := message.get("bytes"):
                        guest.streams[raw[0]] += raw[1:]
                        if not guest.is_slow:
                            guest.say(taken=len(raw) - 1)
                    else:
                        word = msgspec.json.decode(message["text"], type=SessionWord)
                        guest.taken += word.taken
                        if word.end is not None:
                            guest.end = word.end
                            outbox.put_nowait(None)
        finally:
            guest.is_over = True
            task.cancel()

    @staticmethod
    async def _pump(outbox: asyncio.Queue[str], send: Any) -> None:
        while True:
            await send({"type": "websocket.send", "text": await outbox.get()})

    def _http(self, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        path = scope["path"]
        if path == ENROL_PATH:
            return self._enrol(json.loads(body))
        side = self._who(scope)
        if side is None:
            return 401, b"unknown"
        if path == LOGS_PATH:
            return 200, self._logs(msgspec.msgpack.decode(body, type=LogBatch))
        if path == TELEMETRY_PATH:
            with self.lock:
                side.telemetry.append(msgspec.msgpack.decode(body, type=TelemetryBatch))
            return 204, b""
        if path == SOURCES_PATH:
            return 200, msgspec.json.encode(self.sources(side, msgspec.json.decode(body, type=AskSources)))
        if path.startswith(TRACE_PATH.format(trace="")):
            number, _, what = path.removeprefix(TRACE_PATH.format(trace="")).partition("/")
            with self.lock:
                if what:
                    self.traces[number].content = body
                else:
                    self.traces[number].news.append(msgspec.json.decode(body, type=TraceNews))
            return 204, b""
        digest = path.rpartition("/")[2]
        return (200, self.bundles[digest]) if digest in self.bundles else (404, b"")

    def _enrol(self, asked: dict[str, str]) -> tuple[int, bytes]:
        if asked["token"] != TOKEN:
            return 403, b"this token is not known"
        node, credential = str(uuid.uuid4()), uuid.uuid4().hex
        with self.lock:
            self.sides[node] = Side(asked["name"])
            self.credentials[node] = credential
        return 200, json.dumps({"node": node, "name": asked["name"], "credential": credential}).encode()

    def _logs(self, batch: LogBatch) -> bytes:
        commits = []
        with self.lock:
            for chunk in batch.chunks:
                key = (chunk.part, chunk.rank, chunk.stream)
                if chunk.offset == len(self.logs[key]):
                    self.logs[key] += chunk.data
                commits.append(LogCommit(*key, committed=len(self.logs[key])))
        return msgspec.msgpack.encode(LogReceipt(commits))

    def bundle(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.bundles[digest] = content
        return digest


def order(part: str, *argv: str, **spec: Any) -> Wanted:
    """A run order of a small part; ``spec`` overrides fields of its PartSpec."""
    fields: dict[str, Any] = {
        "job": 7,
        "job_name": "toy",
        "stage": "train",
        "stage_kind": "train",
        "project": "lab",
        "attempt_number": 1,
        "argv": list(argv),
        "nodes": ["here"],
        "memory_bytes": 512 << 20,
    }
    return Wanted(part=part, attempt=f"attempt-of-{part}", epoch=1, do="run", spec=PartSpec(**fields | spec))


def stop(part: str, grace_s: float = 5.0, why: str = "CANCELLED", *, save: bool = False) -> Wanted:
    return Wanted(part=part, attempt=f"attempt-of-{part}", epoch=1, do="stop", grace_s=grace_s, why=why, save=save)


@contextlib.contextmanager
def yard(**options: Any) -> Iterator[Yard]:
    model = Yard(**options)
    try:
        yield model
    finally:
        model.close()
