"""Who calls with a key: when that is looked up anew."""

from __future__ import annotations

import asyncio

import pytest

from router import keys
from router.keys import Keys
from router.protocol import Caller

HEADER = b"Bearer yard_a-key-of-mine"


def test_a_service_that_was_just_made_is_looked_for_at_once_and_others_in_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked, services = [100.0], list[str](), [1]
    monkeypatch.setattr(keys.time, "monotonic", lambda: now[0])

    async def ask(digest: str) -> Caller:
        asked.append(digest)
        return Caller("ada", list(services))

    async def run() -> None:
        known = Keys(ask)
        for after_s, service, looked_up in (
            (0.0, 1, 1), (0.1, 2, 1), (keys.AGAIN_S, 2, 2), (0.1, 2, 2), (keys.AGAIN_S, 1, 2), (keys.AGAIN_S, None, 2),
            (keys.FRESH_S, 1, 3),
        ):  # fmt: skip
            now[0] += after_s
            await known.caller(HEADER, service)
            assert len(asked) == looked_up, (after_s, service)
        services.append(2)
        now[0] += keys.AGAIN_S
        assert 2 in (await known.caller(HEADER, 2)).services

    asyncio.run(run())
