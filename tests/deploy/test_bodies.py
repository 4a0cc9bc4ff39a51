"""Heads and bodies that are too large, too slow, too many, or of somebody who may not send them, at a real server.

Nothing here is timed: a server that is patient for an hour holds what is unfinished while it answers others, and one
that has no patience says so.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import os
import select
import socket
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.service import ROOT
from tests.browser.site import _wait, port_to_be

MIB = 2**20
Start = Callable[..., "Web"]


@dataclass(frozen=True)
class Web:
    """A running web server."""

    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def begin(self, path: str, *headers: str, body: bytes = b"") -> socket.socket:
        """A connection that has sent the head of a POST, and as much of its body as is given."""
        opened = self.connect()
        opened.sendall("\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode() + body)
        return opened

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def answered(opened: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status of an answer, and its document; the connection is closed after it."""
    answer = http.client.HTTPResponse(opened)
    answer.begin()
    body = answer.read()
    assert answer.getheader("Connection") == "close"
    return answer.status, json.loads(body)


@contextmanager
def served(folder: Path, module: str = "controlplane.asgi", **environment: str) -> Iterator[Web]:
    from django.db import connection

    port, log = port_to_be(), folder / "web.log"
    url = os.environ["DATABASE_URL"]
    base, _mark, query = url.partition("?")
    own = f"{base.rpartition('/')[0]}/{connection.settings_dict['NAME']}?{query}"
    words = [sys.executable, "-m", "uvicorn", f"{module}:application", "--port", str(port), "--lifespan", "off"]
    words += ["--timeout-graceful-shutdown", "3", "--http", "controlplane.request_head:BoundedHead"]
    told = {"DATABASE_URL": own, "YARD_DB_POOL": "4", "YARD_BLOBS": str(folder / "blobs"), "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        command = [*words, "--log-level", "warning"]
        server = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **told, **environment}, stdout=output, stderr=output
        )
    try:
        _wait(f"http://127.0.0.1:{port}", server, log)
        yield Web(port)
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def start(transactional_db: None, servers: Any, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as running:
        yield lambda **environment: running.enter_context(served(tmp_path, **environment))


def person(name: str, role: str = "member") -> str:
    """The header by which a new person proves who they are."""
    from controlplane.accounts import service
    from controlplane.accounts.models import Member, Project, User

    project, _ = Project.objects.get_or_create(name="vision")
    user = User.objects.create(username=name, default_project=project)
    Member.objects.create(project=project, user=user, role=role)
    return f"Authorization: Bearer {service.make_token(user, 'test')[1]}"


def bundle() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    return packed.getvalue()


def test_a_head_that_never_ends_is_refused_by_its_size(start: Start) -> None:
    web = start(YARD_HEAD_S="3600")
    for begin in (b"GET / HTTP/1.1\r\nX-Long: ", b"GET /", b"GET / HTTP/1.1\r\n", b"\r\n"):
        more = b"a: b\r\n" if begin.endswith(b"1.1\r\n") else b"\r\n" if begin == b"\r\n" else b"x" * 6
        with web.connect() as opened:
            sent = 0
            with suppress(ConnectionError):
                opened.sendall(begin)
                while sent < 16 * MIB:
                    opened.sendall(more * 8_192)
                    sent += len(more) * 8_192
            assert sent < 16 * MIB, "the server closed it"
            with suppress(ConnectionError):
                assert opened.recv(13) in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ", b"")
    assert web.ask("GET", "/healthz")[0] == 200


def test_heads_that_come_slowly_end_and_nobody_else_notices(start: Start) -> None:
    web = start(YARD_HEAD_S="1")
    with ExitStack() as opened:
        silent = [opened.enter_context(web.connect()) for _ in range(100)]
        slow = [opened.enter_context(web.connect()) for _ in range(100)]
        for one in slow:
            one.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert web.ask("GET", "/healthz")[0] == 200
        for one in (*silent, *slow):
            assert one.recv(1_000).startswith(b"HTTP/1.1 408 ")
            assert one.recv(1) == b""
    # A second request on a connection has a head too; one that has come is waited for by nobody.
    with web.connect() as opened_:
        for _ in range(2):
            opened_.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = http.client.HTTPResponse(opened_)
            answer.begin()
            assert (answer.status, bool(answer.read())) == (200, True)
        opened_.sendall(b"\r\n")
        assert opened_.recv(1_000).startswith(b"HTTP/1.1 408 ")


def test_two_hundred_unfinished_posts_keep_nobody_waiting(start: Start) -> None:
    """The address of all of them holds what one address may; who says who they are goes on, from there too."""
    web, token = start(YARD_BODY_GRACE_S="3600"), person("ada")
    with ExitStack() as opened:
        many = [
            opened.enter_context(web.begin("/api/v1/jobs", "Content-Length: 1000000", body=b"{")) for _ in range(200)
        ]
        assert [answered(one)[0] for one in many[64:]] == [429] * 136
        authorization = token.partition(": ")[2]
        for _ in range(20):
            assert web.ask("GET", "/api/v1/whoami", Authorization=authorization)[0] == 200
            assert web.ask("GET", "/sign-in")[0] == 200
        body = bundle()
        assert web.ask("POST", "/api/v1/bundles", body, Authorization=authorization)[0] == 201
        status, told = web.ask(
            "POST", "/sign-in", b"username=ada", **{"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert (status, json.loads(told)["code"]) == (429, "too_many_bodies")
        for one in many[:64]:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
    # What they held is free once they have gone.
    with ExitStack() as opened:
        again = [opened.enter_context(web.begin("/sign-in", "Content-Length: 10")) for _ in range(2)]
        for one in again:
            one.sendall(b"username=a")
            answer = http.client.HTTPResponse(one)
            answer.begin()
            assert answer.status == 403  # it has no CSRF token


def test_an_upload_is_read_only_from_who_may_send_it(start: Start) -> None:
    web, member, viewer = start(YARD_BODY_GRACE_S="3600"), person("ada"), person("vera", "viewer")
    huge = f"Content-Length: {60 * MIB}"
    for path in ("/api/v1/bundles", "/api/v1/jobs/batch", "/api/v1/simulations"):
        for header, status in (("X-Nobody: 1", 401), ("Authorization: Bearer yard_wrong", 401)):
            size = huge if path.endswith("bundles") else f"Content-Length: {16 * MIB}"
            with web.begin(path, size, header, body=b"\x1f") as opened:
                assert answered(opened)[0] == status
    with web.begin("/agent/v1/logs", f"Content-Length: {7 * MIB}", body=b"\x1f") as opened:
        assert answered(opened)[0] == 401
    with web.begin("/api/v1/bundles", huge, viewer, body=b"\x1f") as opened:
        assert answered(opened)[0] == 403
    with ExitStack() as opened:
        nine = [opened.enter_context(web.begin("/api/v1/bundles", huge, member, body=b"\x1f\x8b")) for _ in range(9)]
        ready, _, _ = select.select(nine, [], [], 60)
        assert [answered(one)[0] for one in ready] == [429]


def test_what_comes_too_slowly_is_ended(start: Start) -> None:
    web, member = start(YARD_BODY_GRACE_S="0.2"), person("ada")
    for path, header in (("/sign-in", "X: 1"), ("/api/v1/jobs", "X: 1"), ("/api/v1/bundles", member)):
        with web.begin(path, "Content-Length: 1000000", header, body=b"\x1f") as opened:
            status, problem = answered(opened)
            assert (status, problem["code"]) == (408, "too_slow")
    with web.begin("/admin/login/", "Content-Length: 10") as opened:
        assert answered(opened)[0] == 408


def test_a_hundred_megabytes_are_refused(start: Start) -> None:
    web, member = start(), person("ada")
    for path in ("/api/v1/bundles", "/api/v1/jobs", "/admin/login/", "/sign-in", "/nowhere", "/agent/v1/logs"):
        with web.begin(path, f"Content-Length: {100_000_000}", member) as opened:
            status, problem = answered(opened)
            assert (status, problem["code"]) == (413, "too_large")
        with web.begin(path, "Transfer-Encoding: chunked", member) as opened:
            sent = 0
            try:
                while sent < 100:
                    opened.sendall(b"%x\r\n" % MIB + bytes(MIB) + b"\r\n")
                    sent += 1
            except OSError:
                pass
            # Room for what a socket holds by itself.
            assert sent < (66 if path.endswith("bundles") else 10) + 16


def test_coded_bodies_are_refused(start: Start) -> None:
    """A body that would grow when it is decoded is not decoded."""
    web, member = start(), person("ada")
    bomb = gzip.compress(bytes(10 * MIB))
    authorization = member.partition(": ")[2]
    for path in ("/api/v1/jobs", "/api/v1/jobs/batch", "/agent/v1/telemetry", "/sign-in", "/admin/login/"):
        for coding in ("gzip", "deflate", "br", "gzip, identity"):
            headers = {"Authorization": authorization, "Content-Encoding": coding}
            status, told = web.ask("POST", path, bomb, **headers)
            assert (status, json.loads(told)["code"]) == (415, "unsupported_encoding")


def test_fifty_simulations_at_once_are_two(start: Start) -> None:
    """Nobody launches them here: those that were accepted wait."""
    web, ada, bob = start(), person("ada"), person("bob")
    scenario = {"trace": {"generate": {"jobs": 2000}}, "world": {"nodes": "8x8"}, "profiles": ["fifo"]}
    body = json.dumps(scenario).encode()

    def begin(header: str) -> int:
        return web.ask("POST", "/api/v1/simulations", body, Authorization=header.partition(": ")[2])[0]

    with ThreadPoolExecutor(50) as many:
        asked = [many.submit(begin, ada) for _ in range(50)]
        assert web.ask("GET", "/api/v1/whoami", Authorization=bob.partition(": ")[2])[0] == 200
        assert begin(bob) == 201
        statuses = Counter(one.result() for one in asked)
    assert set(statuses) <= {201, 429}
    assert 1 <= statuses[201] <= 2
