"""Waiting for an event with patience: a cancellation is never lost, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from agents.patience import within


async def test_it_tells_whether_the_event_came() -> None:
    event = asyncio.Event()
    assert not await within(event, 0.01)
    event.set()
    assert await within(event, 60.0)


@pytest.mark.parametrize("steps", range(6))
async def test_who_is_told_to_end_as_the_event_comes_ends(steps: int) -> None:
    event = asyncio.Event()

    async def loop() -> None:
        while True:
            await within(event, 60.0)
            event.clear()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5.0)
    assert task in done
    assert task.cancelled()
