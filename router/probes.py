"""Health checks of the replicas: a GET of the path that their engine has for it, once a second."""

from __future__ import annotations

import asyncio
from typing import Final

from router.pool import Place, Pools
from router.upstream import Broken, connect

EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0
AT_ONCE: Final = 64


class _Verdict:
    """Takes the answer to a probe, of which only the status counts."""

    is_full = False

    def __init__(self) -> None:
        self.status = 0

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
        self.status = status

    def piece(self, body: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


async def probe(place: Place) -> str:
    """Ask a replica how it is; return what is wrong, empty if nothing is."""
    member, verdict = place.member, _Verdict()
    lines = f"GET {member.health} HTTP/1.1\r\nhost: {member.host}\r\nauthorization: Bearer {member.key}\r\n"
    try:
        async with asyncio.timeout(ANSWER_S):
            link = await connect(member.host, member.port)
            try:
                await link.ask(f"{lines}connection: close\r\n\r\n".encode(), verdict, ANSWER_S, ANSWER_S)
            finally:
                link.close()
    except TimeoutError:
        return f"its health check took more than {ANSWER_S:g} s"
    except Broken as broken:
        # The head of a good answer is enough: some engines end it with the connection.
        return "" if verdict.status == 200 else str(broken)
    return "" if verdict.status == 200 else f"its health check answered {verdict.status}"


async def look(place: Place) -> None:
    """Probe a replica, and note what came of it."""
    place.probed(await probe(place))


async def keep(pools: Pools) -> None:
    """Probe all replicas for ever."""
    room = asyncio.Semaphore(AT_ONCE)

    async def in_turn(place: Place) -> None:
        async with room:
            await look(place)

    while True:
        await asyncio.gather(*(in_turn(place) for place in pools.places()))
        # Also those whose breaker closes by time alone.
        for pool in pools.by_name.values():
            pool.wake()
        await asyncio.sleep(EVERY_S)
