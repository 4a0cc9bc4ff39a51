"""The server of a function, as a process of its own, asked over a socket as a router asks it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.port import free_port
from deploy.local.service import ROOT
from router.probes import proof
from tests.router.conftest import until

CODE = """
import os, sys, time
class Untold(BaseException):
    def __str__(self):
        raise SystemExit(4)
def handle(event, call):
    if event == "raise":
        raise ValueError("no such thing")
    if event == "leave":
        sys.exit(3)
    if event == "hang":
        time.sleep(3600)
    if event == "fork":
        return "child" if os.fork() == 0 else "parent"
    if event == "garbage":
        os.write(1, b"HTTP/1.1 200 OK\\r\\n" + bytes(range(256)))
        return "printed"
    if event == "untold":
        raise Untold()
    if event == "set":
        return {1, 2}
    if event == "nan":
        return float("nan")
    if event == "large":
        return "x" * (7 * 2**20)
    if event == "call":
        return call
    return {"got": event, "pid": os.getpid()}
"""


@dataclass
class Server:
    """A running server of a function."""

    url: str
    port: int
    process: subprocess.Popen[bytes]

    def ask(self, event: Any = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": "Bearer of-the-replica", **more.pop("headers", {})}
        given = more or {"json": event}
        return httpx.post(f"{self.url}/invoke", headers=headers, timeout=30, **given)


@contextmanager
def serving(folder: Path, code: str, **env: str) -> Iterator[Server]:
    (folder / "f.py").write_text(code)
    port = free_port(23_500)
    command = [sys.executable, str(ROOT / "switchyard" / "function.py"), str(folder / "f.py")]
    told = {"PORT": str(port), "SERVICE_API_KEY": "of-the-replica", "FUNCTION_TIMEOUT_S": "30", **env}
    process = subprocess.Popen(command, env={**os.environ, **told}, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", port, process)

    def answers() -> bool:
        try:
            return httpx.get(f"{server.url}/health", timeout=60).status_code == 200
        except httpx.TransportError:
            assert process.poll() is None
            return False

    try:
        until(answers)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("function"), CODE, FUNCTION_CONCURRENCY="4") as up:
        yield up
        assert up.process.poll() is None, "none of the calls ended it"


@pytest.mark.parametrize("event", [None, 1, "ö", [1, [2]], {"a": {"b": None}}])
def test_an_event_is_any_json_value(server: Server, event: Any) -> None:
    assert server.ask(event).json()["got"] == event


def test_its_health_check_proves_the_key_as_the_router_expects_and_does_not_tell_it(server: Server) -> None:
    for nonce in ("0123456789abcdef" * 2, "x" * 64):
        answer = httpx.get(f"{server.url}/health", headers={"x-nonce": nonce}, timeout=60)
        assert answer.content == proof("of-the-replica", nonce) != proof("of-another", nonce)
    long = httpx.get(f"{server.url}/health", headers={"x-nonce": "x" * 10_000}, timeout=60)
    assert (long.status_code, b"of-the-replica" in long.content) == (200, False)


def test_without_a_body_the_event_is_null(server: Server) -> None:
    assert server.ask(content=b"").json()["got"] is None


def test_a_handler_may_know_the_call(server: Server) -> None:
    headers = {"x-call-id": "17", "x-call-try": "2"}
    assert server.ask("call", headers=headers).json() == {"id": "17", "try": 2}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("raise", "handler_raised"),
        ("leave", "handler_raised"),
        ("untold", "handler_raised"),
        ("set", "handler_result"),
        ("nan", "handler_result"),
        ("large", "handler_result"),
    ],
)
def test_what_a_handler_does_wrong_is_the_answer_to_its_call(server: Server, event: str, code: str) -> None:
    before = server.ask(0).json()["pid"]
    answer = server.ask(event)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, code)
    assert server.ask(0).json()["pid"] == before


def test_a_handler_that_forks_is_answered_by_the_parent_alone(server: Server) -> None:
    with httpx.Client(headers={"Authorization": "Bearer of-the-replica"}, timeout=60) as http:
        assert http.post(f"{server.url}/invoke", json="fork").json() == "parent"
        # A second answer on this connection would be taken for that to the next request.
        assert http.post(f"{server.url}/invoke", json=5).json()["got"] == 5


def test_what_a_handler_prints_is_no_answer(server: Server) -> None:
    assert server.ask("garbage").json() == "printed"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"\xff\xfe", 400), (b"[" * 200_000, 400), (b"x" * (6 * 2**20 + 1), 413)],
    ids=["half", "bytes", "deep", "large"],
)
def test_what_is_no_event_is_refused(server: Server, body: bytes, status: int) -> None:
    assert server.ask(content=body).status_code == status


def test_only_the_router_is_answered(server: Server) -> None:
    for key in ("", "Bearer wrong", "Bearer of-the-replica-"):
        assert server.ask(1, headers={"Authorization": key}).status_code == 401
    own = {"Authorization": "Bearer of-the-replica"}
    assert httpx.get(f"{server.url}/invoke", headers=own, timeout=60).status_code == 404


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"POST /invoke HTTP/1.1\r\n" + b"x" * 40_000, b"POST"])
def test_nonsense_ends_its_connection_alone(server: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(sent)
        link.shutdown(socket.SHUT_WR)
        while link.recv(65_536):
            pass
    assert server.ask(1).status_code == 200


def test_calls_that_hang_hold_up_no_others_as_long_as_threads_are_left(tmp_path: Path) -> None:
    code = "import time\ndef handle(event):\n    time.sleep(event)\n    return event\n"
    with serving(tmp_path, code, FUNCTION_TIMEOUT_S="3", FUNCTION_CONCURRENCY="3") as up, ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(up.ask, 1), pool.submit(up.ask, 60)]
        while not all(one.done() for one in slow):
            assert up.ask(0.01).json() == 0.01
        assert [one.result().status_code for one in slow] == [200, 500]
        # Whether it starts anew meanwhile or not, who comes is served; a router asks again after a 503.
        for _ in range(20):
            while (answer := up.ask(0)).status_code == 503:
                pass
            assert answer.json() == 0


def test_a_handler_that_hangs_is_answered_and_the_next_call_served(tmp_path: Path) -> None:
    with serving(tmp_path, CODE, FUNCTION_TIMEOUT_S="1") as up:
        answer = up.ask("hang")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "handler_timeout")
        # It starts anew, as the same process at the same socket: nobody is refused meanwhile.
        assert up.ask(7).json() == {"got": 7, "pid": up.process.pid}


BATCH = """
def handle_batch(events):
    if "raise" in events:
        raise ValueError("no")
    if "short" in events:
        return []
    return [[event, len(events)] if event != "bad" else ValueError("this one") for event in events]
"""


def test_events_that_come_together_are_run_together(tmp_path: Path) -> None:
    with serving(tmp_path, BATCH, FUNCTION_BATCH="4", FUNCTION_MAX_WAIT_MS="10000") as up:
        with ThreadPoolExecutor(4) as pool:
            assert sorted(answer.json() for answer in pool.map(up.ask, range(4))) == [[n, 4] for n in range(4)]
            answers = list(pool.map(up.ask, ["bad", 1, 2, 3]))
            assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 500]
            for word in ("raise", "short"):
                assert {answer.status_code for answer in pool.map(up.ask, [word, 1, 2, 3])} == {500}


def test_an_event_that_stays_alone_is_not_kept_waiting(tmp_path: Path) -> None:
    with serving(tmp_path, BATCH, FUNCTION_BATCH="4", FUNCTION_MAX_WAIT_MS="50") as up:
        assert up.ask("one").json() == ["one", 1]


def test_calls_run_side_by_side_as_far_as_they_may(tmp_path: Path) -> None:
    code = "import threading\nmet = threading.Barrier(3)\ndef handle(event):\n    return met.wait(60) >= 0\n"
    with serving(tmp_path, code, FUNCTION_CONCURRENCY="3") as up, ThreadPoolExecutor(3) as pool:
        assert [answer.json() for answer in pool.map(up.ask, range(3))] == [True] * 3


@pytest.mark.parametrize("code", ["x = (", "raise ValueError('no')", "x = 1"])
def test_code_that_cannot_serve_ends_the_process_with_its_reason(tmp_path: Path, code: str) -> None:
    (tmp_path / "f.py").write_text(code)
    command = [sys.executable, str(ROOT / "switchyard" / "function.py"), str(tmp_path / "f.py")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stderr
