"""Wakes services of which nobody answers: tells the control plane at once, and looks for the first replica often.

A report a second would be most of what a first request waits for. The looks become rarer the longer it takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from router.control_link import ControlLink
from router.pool import Place, Pool, Pools
from router.probes import look
from router.protocol import MOST_WOKEN

log = logging.getLogger("switchyard.router")
# Between two looks at the replicas, and between two questions to the control plane, of which the second pause grows.
LOOK_S: Final = 0.008
FIRST_ASK_S: Final = 0.025
LONGEST_ASK_S: Final = 1.0
GROWTH: Final = 1.15


async def keep(pools: Pools, link: ControlLink) -> None:
    """Wake services for ever."""
    while True:
        await pools.needed.wait()
        pools.needed.clear()
        await _until_warm(pools, link)


async def _until_warm(pools: Pools, link: ControlLink) -> None:
    """Look until no service is cold any more. A service that joins begins the pauses anew."""
    seen: set[int] = set()
    looks: dict[Place, asyncio.Task[None]] = {}
    asks, pause_s, ask_at = None, FIRST_ASK_S, 0.0
    try:
        while cold := [pool for pool in pools.by_name.values() if pool.is_cold()]:
            now = time.monotonic()
            if not {pool.served.id for pool in cold} <= seen:
                seen |= {pool.served.id for pool in cold}
                pause_s, ask_at = FIRST_ASK_S, now
            if now >= ask_at and (asks is None or asks.done()):
                asks = asyncio.create_task(_ask(pools, link, cold))
                ask_at, pause_s = now + pause_s, min(LONGEST_ASK_S, pause_s * GROWTH)
            looks = {place: task for place, task in looks.items() if not task.done()}
            for pool in cold:
                for place in pool.places.values():
                    if place not in looks:
                        looks[place] = asyncio.create_task(_look(pool, place))
            await asyncio.sleep(min(pause_s / 3, LOOK_S) if pause_s < LONGEST_ASK_S else LOOK_S * 5)
    finally:
        if asks is not None:
            await asyncio.gather(asks, return_exceptions=True)


async def _ask(pools: Pools, link: ControlLink, cold: list[Pool]) -> None:
    # The longest queues first; the others have their turn with the next report.
    chosen = sorted(cold, key=lambda pool: -len(pool.waiting))[:MOST_WOKEN]
    try:
        pools.refresh(await link.wake([pool.served.id for pool in chosen]))
    except (OSError, ValueError) as error:
        log.info("a service could not be woken at once: %s", error)


async def _look(pool: Pool, place: Place) -> None:
    await look(place)
    if place.is_healthy:
        pool.wake()
