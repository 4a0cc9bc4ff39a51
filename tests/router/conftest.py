"""A real router in a process of its own, before real servers: one that answers, and a control plane of a few lines."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from deploy.local.port import free_port
from deploy.local.service import ROOT
from router.probes import proof


@dataclass
class Control:
    """What the control plane would tell: the table, and who calls with which key."""

    services: list[dict[str, Any]] = field(default_factory=list)
    callers: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    # Services that the next message about waiting requests brings, and what it said; queued calls, and their ends.
    woken: list[dict[str, Any]] = field(default_factory=list)
    wakes: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    is_away: bool = False

    def __post_init__(self) -> None:
        outer = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.headers["authorization"] != "Bearer of-the-router" or outer.is_away:
                    self.send_error(503)
                    return
                if self.path.endswith("/sync"):
                    outer.reports.append(asked)
                    told: Any = {"services": outer.services, "calls": len(outer.calls)}
                elif self.path.endswith("/wake"):
                    outer.wakes.append(asked)
                    outer.services, outer.woken = outer.woken or outer.services, []
                    told = {"services": outer.services}
                elif self.path.endswith("/calls"):
                    told = {"calls": outer.calls[: asked["most"]]}
                    del outer.calls[: asked["most"]]
                elif self.path.endswith("/results"):
                    outer.ends += asked["calls"]
                    told = {}
                else:
                    told = outer.callers.get(asked["digest"], {"user": "", "services": []})
                body = json.dumps(told).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


class Engine:
    """A replica whose answers a test says: ``say`` is called with the connection of each request to /v1/."""

    def __init__(self) -> None:
        outer = self
        self.asked: list[dict[str, Any]] = []
        # The heads of health checks, and the key that it proves to know where that is asked.
        self.probed: list[dict[str, str]] = []
        self.key = "of-a-replica"
        self.metrics = b""
        self.say = self.fine

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                nonce = self.headers.get("x-nonce")
                outer.probed.append({name.lower(): value for name, value in self.headers.items()})
                if nonce:
                    self.whole(proof(outer.key, nonce))
                else:
                    self.whole(outer.metrics if self.path == "/metrics" else b"{}")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.asked.append({"path": self.path, "headers": dict(self.headers), "body": body})
                outer.say(self)

            def whole(self, body: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # callers go away in the middle on purpose

        self.server = Server(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def fine(link: Any) -> None:
        link.whole(b'{"text": "fine"}')

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


@dataclass
class Door:
    """A running router, what stands behind it, and how to call it."""

    control: Control
    port: int
    engines: list[Engine] = field(default_factory=list)
    number: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, count: int = 1, **settings: Any) -> None:
        """Let a service with so many replicas be there, and wait until the router has seen them answer."""
        self.close()
        self.engines = [Engine() for _ in range(count)]
        self.number += 1
        self.tell(**settings)

    def close(self) -> None:
        for engine in self.engines:
            engine.server.shutdown()
            engine.server.server_close()

    def tell(self, **settings: Any) -> None:
        members = [
            {
                "id": n,
                "revision": 1,
                "host": "127.0.0.1",
                "port": one.port,
                "key": "of-a-replica",
                "health": "/health",
                "proves": settings.get("is_function", False),
            }
            for n, one in enumerate(self.engines, 1)
        ]
        self.control.services = [{"id": self.number, "project": "nlp", "name": "chat", "members": members, **settings}]
        began, well = len(self.control.reports), sum(one.key == "of-a-replica" for one in self.engines)
        until(lambda: self.healthy(began) == well)

    def healthy(self, after: int = 0) -> int:
        """How many replicas the newest report, of those after so many, says to be well."""
        newest = self.control.reports[after + 1 :][-1:]
        return sum(one["healthy"] for report in newest for one in report["members"]) if newest else -1

    def ask(self, body: Any = None, key: str = "yard_a-key-of-mine", **more: Any) -> httpx.Response:
        body = {"prompt": "to be"} if body is None else body
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Plain: reading the certificates that are trusted would take longer than all the rest.
        address = f"{self.url}/s/nlp/chat/v1/completions"
        return httpx.post(address, json=body, headers=headers, timeout=30, verify=False, **more)


def until(claim: Any) -> None:
    """Wait for what must come; the patience only bounds a failure."""
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One router for all tests of a module; each has services of its own."""
    control = Control()
    mine, strangers = (hashlib.sha256(key).hexdigest() for key in (b"yard_a-key-of-mine", b"yard_of-a-stranger"))
    control.callers[mine] = {"user": "ada", "services": list(range(1_000))}
    control.callers[strangers] = {"user": "eve", "services": [2_000]}
    key = tmp_path_factory.mktemp("router") / "router.key"
    key.write_text("of-the-router\n")
    port = free_port(23_000)
    command = [sys.executable, "-m", "router", "--control", control.url, "--key-file", str(key), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    found = Door(control, port)
    try:
        until(lambda: control.reports)
        yield found
    finally:
        process.terminate()
        process.wait()
        found.close()
        control.server.shutdown()
        control.server.server_close()


@pytest.fixture
def door(running: Door) -> Iterator[Door]:
    yield running
    running.control.is_away = False
