"""What a browser's socket may say: each message is understood, refused in a sentence, or ends the line politely."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from controlplane.accounts.models import User
from controlplane.live.browser_socket import CLOSE_UNREADABLE, MAX_MESSAGE_LENGTH
from tests.controlplane.test_feed import WAIT_S, line, people  # noqa: F401  the fixture
from tests.fuzz.hostile import CURSORS, JSON, WORDS

TOPICS = (
    *(f"/api/v1/jobs?q={word}" for word in WORDS), *(f"/api/v1/jobs/{word}" for word in WORDS),
    *(f"/api/v1/jobs?cursor={text}" for text in CURSORS if len(text) < 3_000),
    "/api/v1/", "/api/v1/\ud800", "/api/v1/\0", "/api/v1/jobs?q=\0", "/api/v1/../../admin/", "/api/v1//[",
    "/api/v1/jobs?" + "&" * 300, "/api/v1/docs",
    "/api/v1/openapi.yaml", "/api/v1/timeline?from=0001-01-01T00:00:00%2B14:00", "/api/v1/jobs#x", "/api/v1/\r\nX: y",
    "", "//[", "/api/v1/é",
)  # fmt: skip
ODD = (
    *JSON, "", "{", "x", "[" * 3_000, '{"op":' * 500, '{"op": "sub"}', '{"op": "sub", "topic": 1}',
    '{"op": "sub", "topic": null}', '{"op": [], "topic": "/api/v1/jobs"}',
    '{"op": "sub", "topic": {"a": 1}}', '{"op": "unsub", "topic": "/api/v1/nothing"}',
    '{"op": "fly", "topic": "/api/v1/jobs"}', '"\\ud800"',
    '{"op": "sub", "topic": "/api/v1/\\ud800"}', '{"op": "sub", "topic": "/api/v1/\\u0000"}',
    '{"op": "sub", "topic": "/api/v1/whoami", "etag": {"a": [1]}, "want": [1]}',
)  # fmt: skip


async def answers(own: Any) -> dict[str, Any]:
    """The next message about whoami, which is asked last."""
    while True:
        message = dict(await own.hear())
        if message["topic"].startswith("/api/v1/whoami"):
            return message
        assert message.get("status", 200) < 500, message


async def test_odd_messages_break_nothing(people: dict[str, User], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with line(people["owner"]) as own:
            for text in ODD:
                if text and len(text) <= MAX_MESSAGE_LENGTH:
                    await own.send(text)
            await own.say(op="sub", topic="/api/v1/whoami?")
            assert (await answers(own))["data"]["user"] == "owner"
    assert not [record for record in caplog.records if record.exc_info], "a traceback"


async def test_odd_topics_are_answered_in_their_order(
    people: dict[str, User], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with line(people["owner"]) as own:
            for topic in TOPICS:
                await own.say(op="sub", topic=topic)
                message = await own.hear()
                assert message.get("status", 200) < 500, topic
                await own.say(op="unsub", topic=topic)
    assert not [record for record in caplog.records if record.exc_info], "a traceback"


@pytest.mark.parametrize(
    "message",
    [{"bytes": b"\x00\x01"}, {"text": "x" * (MAX_MESSAGE_LENGTH + 1)}, {"text": ""}],
    ids=["bytes", "long", "empty"],
)
async def test_what_no_page_sends_ends_the_line(people: dict[str, User], message: dict[str, Any]) -> None:
    async with line(people["owner"]) as own:
        await own.communicator.send_input({"type": "websocket.receive", **message})
        async with asyncio.timeout(WAIT_S):
            while (output := await own.communicator.receive_output(WAIT_S))["type"] != "websocket.close":
                assert json.loads(output["text"])["kind"] == "beat"
        assert output["code"] == CLOSE_UNREADABLE
