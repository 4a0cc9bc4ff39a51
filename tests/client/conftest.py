"""A small HTTP server on a real socket that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from switchyard import AsyncClient, Client
from switchyard.cli.main import main


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Said:
    """One answer; ``status`` 0 drops the connection without a word."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


Answer = Said | Callable[[Asked], Said]


class Server:
    """Answers ``(method, path)`` with the next of its answers; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        self._lock = threading.Lock()
        outer = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # one answer, one packet

            def answer(self) -> None:
                outer.answer(self)

            do_GET = do_POST = do_HEAD = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815 - the names that the base class calls

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def on(self, method: str, path: str, *answers: Answer) -> None:
        """From now on, ``method /api/v1<path>`` gets these answers, one after the other."""
        self._answers[(method, "/api/v1" + path)] = list(answers)

    def to(self, method: str, path: str) -> list[Asked]:
        """The requests that arrived at ``method /api/v1<path>``."""
        return [a for a in self.asked if (a.method, a.path) == (method, "/api/v1" + path)]

    def answer(self, door: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(door.path)
        body = door.rfile.read(int(door.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in door.headers.items()}
        asked = Asked(door.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        with self._lock:
            self.asked.append(asked)
            waiting = self._answers.get((asked.method, asked.path), [missing()])
            chosen = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        said = chosen if isinstance(chosen, Said) else chosen(asked)
        if said.status == 0:
            door.close_connection = True
            return
        content = (
            said.body if isinstance(said.body, bytes) else b"" if said.body is None else json.dumps(said.body).encode()
        )
        door.send_response(said.status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **said.headers,
        }.items():
            door.send_header(name, value)
        door.end_headers()
        if asked.method != "HEAD":
            door.wfile.write(content)

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def missing() -> Said:
    return problem(404, "not_found", "there is nothing at this address that you may see")


def problem(status: int, code: str, detail: str, **more: Any) -> Said:
    """A problem document as the control plane writes it."""
    body = {"title": "x", "status": status, "detail": detail, "code": code, "trace_id": "abc123", **more}
    return Said(status, body, {"Content-Type": "application/problem+json"})


def job(number: int = 12, state: str = "PENDING", **more: Any) -> dict[str, Any]:
    """A job as the REST interface gives it."""
    stage = {
        "id": "s1", "name": "main", "kind": "generic", "index": 0, "needs": [], "state": state, "substate": "",
        "cause": "", "detail": "", "exit_code": None, "asks": "1 core", "placed": [], "why_here": "", "reason": None,
        "reasons": [], "funnel": [], "expected_start": None, "planned": None, "evaluated_at": None, "ended_at": None,
    }  # fmt: skip
    return {
        "id": "0199-1", "number": number, "name": "hello", "project": "vision", "user": "mia", "pool": "default",
        "priority": {"class": "medium", "value": 500}, "state": state, "cause": "", "simulated": False,
        "submitted_at": "2026-11-21T03:00:00Z", "started_at": None, "ended_at": None, "progress": None, "reason": None,
        "labels": {}, "stages": [stage], **more,
    }  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home and an empty current folder; returns the folder."""
    for name in ("YARD_URL", "YARD_TOKEN", "YARD_HOME", "YARD_PROFILE", "YARD_PROJECT", "XDG_CONFIG_HOME", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return here


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and polls come at once; what they do does not depend on how long they wait."""
    monkeypatch.setattr("switchyard.wire.LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("switchyard.logs.POLL_S", (0.01, 0.02))
    monkeypatch.setattr("switchyard.logs.SETTLE_S", 0.02)
    monkeypatch.setattr("switchyard.client.LONGEST_POLL_S", 0.01)
    for name, value in {"wire.LONGEST_PAUSE_S": 0.01, "logs.POLL_S": (0.01, 0.02), "logs.SETTLE_S": 0.02}.items():
        monkeypatch.setattr(f"switchyard.aio.{name}", value)
    monkeypatch.setattr("switchyard.aio.client.LONGEST_POLL_S", 0.01)


class Waited:
    """The asynchronous client, used as the synchronous one is: whatever has to be awaited is awaited at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:
        self._loop, self._inner = loop, inner

    def __getattr__(self, name: str) -> Any:
        return self._plain(getattr(self._inner, name))

    def __getitem__(self, name: str) -> Any:
        return self._inner[name]

    def __iter__(self) -> Iterator[Any]:
        return self._steps(aiter(self._inner))

    def __enter__(self) -> Any:
        return self._plain(self._inner.__aenter__())

    def __exit__(self, *raised: Any) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(*raised))

    def __call__(self, *given: Any, **named: Any) -> Any:
        given = tuple(one._inner if isinstance(one, Waited) else one for one in given)
        return self._plain(self._inner(*given, **named))

    def _plain(self, found: Any) -> Any:
        if inspect.iscoroutine(found):
            return self._plain(self._loop.run_until_complete(found))
        if isinstance(found, AsyncIterator):
            return self._steps(found)
        is_ours = type(found).__module__.startswith("switchyard.aio") or callable(found)
        return Waited(self._loop, found) if is_ours else found

    def _steps(self, found: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                yield self._plain(self._loop.run_until_complete(anext(found)))
        except StopAsyncIteration:
            return


@pytest.fixture(params=["Client", "AsyncClient"])
def new_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """``Client`` itself, and then ``AsyncClient`` used in the same way, so that the same tests judge both."""
    if request.param == "Client":
        yield Client
        return
    loop = asyncio.new_event_loop()
    yield Waited(loop, AsyncClient)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture
def said() -> type[Said]:
    return Said


@pytest.fixture
def as_problem() -> Callable[..., Said]:
    return problem


@pytest.fixture
def as_job() -> Callable[..., dict[str, Any]]:
    return job


@pytest.fixture
def yard(server, monkeypatch, capsys):
    """Runs the command in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("YARD_URL", server.url)
    monkeypatch.setenv("YARD_TOKEN", "t")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run
