"""The asynchronous client is the synchronous one, made anew by a program; how both behave is in test_client.py and
test_logs.py."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from switchyard import AsyncClient, Client

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("twin", ROOT / "switchyard/packaging/twin.py")
assert _spec is not None
assert _spec.loader is not None
twin = importlib.util.module_from_spec(_spec)
sys.modules["twin"] = twin  # where its dataclasses look for themselves
_spec.loader.exec_module(twin)


def test_the_twin_is_up_to_date():
    for name, text in twin.pages().items():
        written = (ROOT / f"switchyard/aio/{name}.py").read_text()
        assert written == text, "run: python switchyard/packaging/twin.py"


def test_whatever_one_client_can_the_other_can():
    def offers(client: Any) -> set[str]:
        parts = {name: part for name, part in vars(client).items() if not name.startswith("_") and part is not None}
        return {
            f"{where}.{name}"
            for where, part in {"client": client, **parts}.items()
            for name, _ in inspect.getmembers(part, inspect.ismethod)
            if not name.startswith("_")
        }

    one, other = Client("http://127.0.0.1:9"), AsyncClient("http://127.0.0.1:9")
    assert "jobs.submit" in offers(one)
    assert offers(one) == offers(other)


async def test_a_job_is_submitted_waited_for_and_read(server, said, as_job):
    ended = as_job(state="COMPLETED")
    server.on("POST", "/jobs", said(201, as_job()))
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING")), said(200, ended))
    stream = {"stage": "main", "attempt": 1, "rank": 0, "stream": "out", "size_bytes": 6}
    server.on("GET", "/jobs/12/streams", said(200, {"results": [stream], "next": None}))
    text = {"Content-Type": "text/plain", "X-Log-Next-Offset": "6"}
    server.on("GET", "/jobs/12/logs", said(200, b"hello\n", text))
    async with AsyncClient(server.url) as client:
        job = await client.jobs.submit({"run": "echo hello"})
        await job.wait()
        assert job.state == "COMPLETED"
        assert [piece async for piece in job.logs(follow=True)] == ["hello\n"]


async def test_one_wait_does_not_hold_up_another(server, said, as_job):
    """The first job ends only when somebody has asked for the second."""
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def second(asked: Any) -> Any:
        loop.call_soon_threadsafe(seen.set)
        return said(200, as_job(13, "COMPLETED"))

    server.on("GET", "/jobs/12", lambda asked: said(200, as_job(state="COMPLETED" if seen.is_set() else "RUNNING")))
    server.on("GET", "/jobs/13", second)
    async with AsyncClient(server.url) as client:
        first, other = await asyncio.gather(client.jobs.wait(12), client.jobs.wait(13))
    assert (first.state, other.number) == ("COMPLETED", 13)


def test_a_source_that_cannot_be_told_apart_is_refused():
    mixed = '''"""x"""
from contextlib import ExitStack
def f(name: str) -> None:
    with ExitStack() as opened, open(name) as file:
        opened.close()
'''
    with pytest.raises(SystemExit, match="what waits"):
        twin.Sources({"x": mixed})
