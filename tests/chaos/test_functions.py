"""Functions on a real stack, with a real router, agent and database: cold and warm calls, a queue, hostile handlers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on, processes_of
from tests.chaos.test_services import token_of

pytestmark = pytest.mark.chaos

CODE = """
import os, time
def handle(event, call):
    if event == "raise":
        raise ValueError("no such thing")
    if event == "hang":
        time.sleep(3600)
    if event == "fork":
        return "child" if os.fork() == 0 else "parent"
    if event == "die":
        os._exit(3)
    if event == "once" and call["try"] == 1:
        os._exit(3)
    if event == "garbage":
        os.write(1, bytes(range(256)) * 1000)
    return [event, os.getpid()]
"""


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """One stack for all of these tests."""
    with standing() as up:
        up.started()
        yield from on(up)


@dataclass
class Deployed:
    """A function on the stack."""

    yard: Yard
    id: int

    @property
    def now(self) -> Any:
        return self.yard.client.functions.get(self.id)["function"]

    def ask(self, event: Any, **more: Any) -> httpx.Response:
        own = {"Authorization": f"Bearer {token_of(self.yard.client)}"}
        given = more or {"json": event}
        return httpx.post(self.now["address"], headers=own, timeout=240, **given)

    def is_ready(self) -> bool:
        return bool(self.now["state"] == "READY")

    def ended(self, call: int) -> Any:
        found: Any = None

        def is_over() -> bool:
            nonlocal found
            found = self.yard.client.functions.call(self.id, call)
            return found["state"] in ("DONE", "DEAD")

        assert eventually(is_over), found
        return found


@pytest.fixture
def function(yard: Yard) -> Iterator[Deployed]:
    """A function with one replica that answers."""
    options = {"concurrency": 4, "timeout_s": 8, "max": 1, "tries": 2}
    made: Any = yard.client.functions.create("try", code=CODE, options=options)
    deployed = Deployed(yard, made["function"]["id"])
    try:
        assert eventually(deployed.is_ready), deployed.now
        yield deployed
    finally:
        yard.client.functions.delete(deployed.id)
        assert eventually(lambda: not list(yard.client.functions.list()))
        assert eventually(lambda: not processes_of("switchyard/function.py"))


def test_hostile_calls_cost_nobody_else_anything(function: Deployed) -> None:
    pid = function.ask(0).json()[1]
    with ThreadPoolExecutor(3) as pool:
        for answer in pool.map(function.ask, ["raise", "fork", "garbage"] * 4):
            assert answer.status_code in (200, 500)
            assert answer.text != '"child"'
    assert function.ask("raise").json()["error"]["code"] == "handler_raised"
    # Not read: the answer comes before the body has been sent.
    assert function.ask(None, content=b"x" * 100_000_000).status_code == 413
    place = urlsplit(function.now["address"])
    for _ in range(3):
        with socket.create_connection((place.hostname, place.port)) as link:
            head = (
                f"POST {place.path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of(function.yard.client)}\r\n"
            )
            link.sendall(f"{head}content-length: 6\r\n\r\n".encode() + b'"hang"')
        # The caller went away in the middle.
    assert function.ask(1).json() == [1, pid]
    # What hangs is answered, and the replica starts anew as the same process.
    assert function.ask("hang").json()["error"]["code"] == "handler_timeout"
    assert function.ask(2).json() == [2, pid]
    assert httpx.post(function.now["address"], json=1, timeout=60).status_code == 401
    stranger = {"Authorization": "Bearer yard_a-key-that-nobody-has"}
    assert httpx.post(function.now["address"], json=1, headers=stranger, timeout=60).status_code == 401


def test_a_handler_that_ends_its_replica_is_not_run_twice_and_another_serves(function: Deployed) -> None:
    assert function.ask("die").status_code == 502
    assert function.ask(1).json()[0] == 1


def test_a_queued_call_outlives_its_replica(function: Deployed) -> None:
    functions = function.yard.client.functions
    # Its end is a try of all that its replica runs just then, so the others are left afterwards.
    done = function.ended(functions.leave(function.id, "once")["id"])
    calls = [functions.leave(function.id, event)["id"] for event in (1, "raise")]
    plain, dead = (function.ended(call) for call in calls)
    assert (done["state"], done["result"][0], done["tries"]) == ("DONE", "once", 1)
    assert (plain["state"], plain["tries"]) == ("DONE", 0)
    assert (dead["state"], dead["tries"], dead["fault"]) == ("DEAD", 2, "ValueError: no such thing")


@pytest.mark.long
def test_a_quiet_function_sleeps_and_the_next_call_wakes_it(function: Deployed) -> None:
    function.yard.client.functions.change(function.id, {"options": {"idle_s": 1}})
    for _ in range(2):
        assert eventually(lambda: function.now["state"] == "ASLEEP"), function.now
        assert not processes_of("switchyard/function.py")
        assert function.ask("hello").json()[0] == "hello"
