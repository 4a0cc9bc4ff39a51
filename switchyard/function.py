"""Answers calls of a function inside a stage: one file with ``handle(event)``, over HTTP, for a router to ask.

One file, standard library only, Python 3.9 or newer: the agent puts it beside :mod:`switchyard.runtime`. Called as

    python3 function.py f.py

``f.py`` has ``handle(event)`` or ``handle(event, call)``, or ``handle_batch(events)``, which returns a result for each
event. An event and a result are JSON values; ``call`` is ``{"id": ..., "try": ...}``, the same id when a call is
delivered again. ``$PORT``, ``$SERVICE_API_KEY``, ``$FUNCTION_CONCURRENCY``, ``$FUNCTION_BATCH``,
``$FUNCTION_MAX_WAIT_MS`` and ``$FUNCTION_TIMEOUT_S`` say how.

It imports little, for every import delays the first answer. A handler that raises costs its own call an error; one that
takes too long cannot be ended by itself: its caller is answered, its thread is lost, and this process starts anew at
the same socket as soon as nothing else runs.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
from _operator import _compare_digest as same
from contextlib import contextmanager

# Not of typing, whose import takes as long as all others together; checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Answer = tuple[int, bytes]

HEAD_BYTES = 16_384
MOST_BYTES = 6 * 2**20
MOST_CONNECTIONS = 512
LONGEST_FAULT = 500
LAST_ANSWERS_S = 1.0
LISTENS = "FUNCTION_LISTEN_FD"
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 413: "Content Too Large",
           431: "Head Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class Batcher:
    """Things that wait to be done together: at most ``most`` at once, none waiting longer than ``wait_s`` for more.

    Time is told by the caller, in seconds; what was added first is taken first.
    """

    def __init__(self, most: int, wait_s: float) -> None:
        self.most, self.wait_s = most, wait_s
        self.items: list[tuple[float, Any]] = []

    def add(self, item: Any, now: float) -> None:
        self.items.append((now + self.wait_s, item))

    def due_s(self, now: float) -> float | None:
        """Return in how many seconds a batch is due: 0 if one is now, None if nothing waits."""
        if not self.items:
            return None
        return 0.0 if len(self.items) >= self.most else max(0.0, self.items[0][0] - now)

    def take(self, now: float) -> list[Any]:
        """Return the batch that is due, without what comes after it; empty if none is."""
        if self.due_s(now) != 0.0:
            return []
        taken, self.items = self.items[: self.most], self.items[self.most :]
        return [item for _, item in taken]


class Call:
    """One call: its event, and its answer once there is one."""

    def __init__(self, event: Any, info: dict[str, Any]) -> None:
        self.event, self.info = event, info
        self.done = threading.Event()
        self.status, self.body = 500, b""

    def answer(self, status: int, body: bytes) -> None:
        """Give the answer; the first one counts."""
        if not self.done.is_set():
            self.status, self.body = status, body
            self.done.set()


def fault(code: str, text: str) -> bytes:
    """Return the body of an error."""
    kind = (
        "handler_error" if code.startswith("handler") else "server_error" if code == "restarts" else "invalid_request"
    )
    return json.dumps({"error": {"type": kind, "code": code, "message": text[:LONGEST_FAULT], "param": None}}).encode()


class Handler:
    """The handler of a file, and the threads that run it, ``concurrency`` of them."""

    def __init__(self, path: str, concurrency: int, batch: int, wait_s: float, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.handle, self.handle_batch = load(path)
        if self.handle_batch is None:
            batch, wait_s = 1, 0.0
        self.takes_call = _takes_call(self.handle)
        self.batcher = Batcher(batch, wait_s)
        self.changed = threading.Condition()
        self.running: dict[int, tuple[float, list[Call]]] = {}
        self.concurrency, self.is_over = concurrency, False
        self.pid = os.getpid()
        for _ in range(concurrency):
            threading.Thread(target=self.work, daemon=True).start()

    def call(self, event: Any, info: dict[str, Any]) -> Answer:
        """Run one call to its end; return the status and the body of its answer."""
        call = Call(event, info)
        with self.changed:
            if self.is_over:
                return 503, fault("restarts", "this replica starts anew")
            self.batcher.add(call, time.monotonic())
            self.changed.notify_all()
        call.done.wait()
        return call.status, call.body

    def work(self) -> None:
        """Run batches for ever."""
        me = threading.get_ident()
        while True:
            with self.changed:
                while not (batch := self.batcher.take(time.monotonic())):
                    self.changed.wait(self.batcher.due_s(time.monotonic()))
                self.running[me] = (time.monotonic() + self.timeout_s, batch)
                self.changed.notify_all()
            try:
                self.run(batch)
            finally:
                if os.getpid() != self.pid:
                    # A handler that forked came back twice; the answer is the parent's.
                    os._exit(0)
                with self.changed:
                    self.running.pop(me, None)
                    self.changed.notify_all()

    def run(self, batch: Sequence[Call]) -> None:
        try:
            answers = self.answers(batch)
        except BaseException as error:  # noqa: BLE001  whatever it raises is the answer to these calls, and no more
            answers = [(500, failed(error))] * len(batch) if os.getpid() == self.pid else []
        if os.getpid() == self.pid:
            for number, call in enumerate(batch):
                call.answer(*answers[number])

    def answers(self, batch: Sequence[Call]) -> list[Answer]:
        """Let the handler run a batch; return the answer to each call."""
        if self.handle_batch is None:
            assert self.handle is not None, "a file has one of them"
            return [written(self.handle(batch[0].event, *([batch[0].info] if self.takes_call else [])))]
        results = self.handle_batch([call.event for call in batch])
        if not isinstance(results, (list, tuple)) or len(results) != len(batch):
            raise TypeError(f"handle_batch must return a list of {len(batch)} results, one for each event")
        return [written(result) for result in results]

    def watch(self) -> None:
        """Answer calls whose time is over; return when it is time to start anew: where such a call holds its thread,
        and no other runs, or no thread is left."""
        with self.changed:
            while True:
                now = time.monotonic()
                overdue = [batch for until, batch in self.running.values() if until <= now]
                for call in [call for batch in overdue for call in batch]:
                    call.answer(500, fault("handler_timeout", f"it took more than {self.timeout_s:g} s"))
                is_quiet = len(overdue) == len(self.running) and not self.batcher.items
                if overdue and (is_quiet or len(overdue) == self.concurrency):
                    self.is_over = True
                    for _, call in self.batcher.items:
                        call.answer(503, fault("restarts", "this replica starts anew"))
                    return
                next_s = min((until - now for until, _ in self.running.values() if until > now), default=None)
                self.changed.wait(next_s if next_s is None else next_s + 0.001)


def load(path: str) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Return ``handle`` and ``handle_batch`` of a file, or None for one that is not there. Exits where neither is."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = type(sys)("function_code")
    module.__file__ = path
    sys.modules["function_code"] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)
    handle, batch = getattr(module, "handle", None), getattr(module, "handle_batch", None)
    if not callable(handle) and not callable(batch):
        raise SystemExit(f"{os.path.basename(path)} has neither handle(event) nor handle_batch(events)")
    return handle if callable(handle) else None, batch if callable(batch) else None


def _takes_call(handle: Any) -> bool:
    """Whether the second parameter of a handler is ``call``."""
    code = getattr(handle, "__code__", None)
    return code is not None and code.co_varnames[1 : code.co_argcount][:1] == ("call",)


def failed(error: BaseException) -> bytes:
    """Return the body that tells what a handler raised; its traceback goes to the log."""
    import traceback

    try:
        traceback.print_exception(type(error), error, error.__traceback__)
        return fault("handler_raised", f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001  what it raised cannot even be told
        return fault("handler_raised", type(error).__name__)


def written(result: Any) -> Answer:
    """Return the answer that a result makes."""
    if isinstance(result, BaseException):
        return 500, failed(result)
    try:
        body = json.dumps(result, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return 500, fault("handler_result", f"its result is no JSON: {error}")
    if len(body) > MOST_BYTES:
        return 500, fault("handler_result", f"its result has more than {MOST_BYTES} bytes")
    return 200, body


class Connection:
    """A connection of the router: one request after the other, each with a ``content-length``."""

    def __init__(self, link: socket.socket, function: Handler, key: bytes, door: Door) -> None:
        self.link, self.function, self.key, self.door = link, function, key, door
        self.left = b""

    def serve(self) -> None:
        try:
            while self.once():
                pass
        except OSError:
            pass
        finally:
            self.link.close()

    def once(self) -> bool:
        """Answer one request; return whether another may come."""
        while b"\r\n\r\n" not in self.left:
            if len(self.left) > HEAD_BYTES:
                return self.say(431, fault("head_too_large", f"a head has at most {HEAD_BYTES} bytes"), False)
            piece = self.link.recv(65_536)
            if not piece:
                return False
            self.left += piece
        head, _, self.left = self.left.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        given = {}
        for line in lines:
            name, _, value = line.partition(b":")
            given[name.strip().lower()] = value.strip()
        stays = given.get(b"connection", b"").lower() != b"close"
        if first.startswith(b"GET /health "):
            return self.say(200, self.proof(given.get(b"x-nonce", b"")[:64]), stays)
        if not same(given.get(b"authorization", b""), b"Bearer " + self.key):
            return self.say(401, fault("key", "this is not the key of this replica"), False)
        length = given.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 10 or b"transfer-encoding" in given:
            return self.say(400, fault("length", "a request needs its content-length"), False)
        if int(length) > MOST_BYTES:
            return self.say(413, fault("too_large", f"an event has at most {MOST_BYTES} bytes"), False)
        body = self.read(int(length))
        if body is None:
            return False
        if not first.startswith(b"POST /invoke "):
            return self.say(404, fault("path", "POST /invoke is all that there is"), stays)
        try:
            event = json.loads(body) if body.strip() else None
        except (ValueError, RecursionError) as error:
            return self.say(400, fault("event", f"the event is no JSON: {error}"), stays)
        number = given.get(b"x-call-try", b"1")
        info = {"id": given.get(b"x-call-id", b"").decode("latin-1"), "try": int(number) if number.isdigit() else 1}
        with self.door.busy():
            status, answer = self.function.call(event, info)
            return self.say(status, answer, stays)

    def proof(self, nonce: bytes) -> bytes:
        """Return what shows who asks that this process knows the key of the replica, without telling it."""
        from hmac import digest

        return b'{"proof":"%s"}' % digest(self.key, b"health " + nonce, "sha256").hex().encode()

    def read(self, length: int) -> bytes | None:
        """Return the body of a request; None if the caller went away."""
        pieces, missing = [self.left[:length]], length - len(self.left)
        self.left = self.left[length:]
        while missing > 0:
            piece = self.link.recv(min(missing, 1 << 20))
            if not piece:
                return None
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def say(self, status: int, body: bytes, stays: bool) -> bool:
        close = "" if stays else "connection: close\r\n"
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n{close}"
        self.link.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return stays


def listen() -> socket.socket:
    """Return the socket to listen at: that of the process before this one, or a new one at ``$PORT``."""
    if kept := os.environ.pop(LISTENS, ""):
        return socket.socket(fileno=int(kept))
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((os.environ.get("SERVICE_HOST", "0.0.0.0"), int(os.environ.get("PORT", "8000"))))
    server.listen(256)
    return server


class Door:
    """Where the router comes in. Shut, it leaves who comes to the next process at the same socket."""

    def __init__(self, server: socket.socket) -> None:
        self.server, self.changed = server, threading.Condition()
        self.count, self.is_shut = 0, False
        server.setblocking(False)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a call whose answer is on its way."""
        with self.changed:
            self.count += 1
        try:
            yield
        finally:
            with self.changed:
                self.count -= 1
                self.changed.notify_all()

    def accept(self, function: Handler, key: bytes) -> None:
        """Serve connections, a thread each, until it is shut."""
        room = threading.BoundedSemaphore(MOST_CONNECTIONS)

        def serve(link: socket.socket) -> None:
            try:
                Connection(link, function, key, self).serve()
            finally:
                room.release()

        while True:
            select.select([self.server], [], [])
            with self.changed:
                if self.is_shut:
                    return
                try:
                    link, _ = self.server.accept()
                except BlockingIOError:
                    continue
            link.setblocking(True)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not room.acquire(blocking=False):
                link.close()
                continue
            threading.Thread(target=serve, args=(link,), daemon=True).start()

    def shut(self) -> None:
        """Let nobody in any more, and wait a moment for answers that are on their way."""
        with self.changed:
            self.is_shut = True
            self.changed.wait_for(lambda: not self.count, LAST_ANSWERS_S)


def main() -> None:
    def number(name: str, usual: float) -> float:
        return float(os.environ.get(f"FUNCTION_{name}") or usual)

    function = Handler(
        sys.argv[1],
        int(number("CONCURRENCY", 1)),
        int(number("BATCH", 1)),
        number("MAX_WAIT_MS", 10) / 1000,
        number("TIMEOUT_S", 30),
    )
    server = listen()
    key = os.environ.get("SERVICE_API_KEY", "").encode()
    door = Door(server)
    threading.Thread(target=door.accept, args=(function, key), daemon=True).start()
    function.watch()
    door.shut()
    print("a call holds its thread: starting anew", flush=True)
    os.set_inheritable(server.fileno(), True)
    os.environ[LISTENS] = str(server.fileno())
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    main()
