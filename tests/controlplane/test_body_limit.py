"""A body beyond the cap is refused before it is taken in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from controlplane.body_limit import BodyLimit, Route

Message = Mapping[str, Any]


async def ask(chunks: list[bytes], headers: list[tuple[bytes, bytes]], path: str = "/x") -> tuple[list[Message], bytes]:
    """Send a request through a limit of ten bytes; returns what was answered and what the application took in."""
    taken = bytearray()

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            taken.extend(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    coming = [{"type": "http.request", "body": c, "more_body": i + 1 < len(chunks)} for i, c in enumerate(chunks)]
    answers: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        answers.append(message)

    limited = BodyLimit(application, [Route("/wide", 20, lambda _: ""), Route("", 10, lambda _: "")])
    await limited({"type": "http", "path": path, "headers": headers}, receive, send)
    return answers, bytes(taken)


async def test_what_fits_passes() -> None:
    answers, taken = await ask([b"12345", b"67890"], [(b"content-length", b"10")])
    assert answers[0]["status"] == 200
    assert taken == b"1234567890"


async def test_a_declared_length_is_refused_before_a_byte_is_read() -> None:
    answers, taken = await ask([b"x" * 11], [(b"content-length", b"11")])
    assert answers[0]["status"] == 413
    assert b"10 bytes at most" in answers[1]["body"]
    assert taken == b""


async def test_an_undeclared_flood_is_cut_off_and_answered_once() -> None:
    answers, taken = await ask([b"12345", b"67890", b"more", b"and more"], [(b"transfer-encoding", b"chunked")])
    assert [a.get("status") for a in answers if a["type"] == "http.response.start"] == [413]
    assert taken == b"1234567890"


@pytest.mark.parametrize(("path", "size", "status"), [("/wide/x", 20, 200), ("/wide/x", 21, 413), ("/x", 11, 413)])
async def test_each_address_has_its_own_limit(path: str, size: int, status: int) -> None:
    for headers in ([], [(b"content-length", str(size).encode())]):
        answers, _taken = await ask([b"x" * size], headers, path)
        assert answers[0]["status"] == status


@pytest.mark.parametrize("declared", [b"9" * 5000, b"-1", b"abc", "²".encode(), b""])
async def test_a_length_that_lies_is_not_believed(declared: bytes) -> None:
    answers, taken = await ask([b"x" * 11], [(b"content-length", declared)])
    assert answers[0]["status"] == 413
    assert len(taken) <= 11
