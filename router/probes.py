"""Health checks of the replicas: a GET of the path that their engine has for it, once a second.

Engines that tell how busy they are are asked for that too, every few seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from router import load
from router.pool import Place, Pool, Pools
from router.protocol import EngineLoad
from router.upstream import Broken, connect

EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0
AT_ONCE: Final = 64
# In so many rounds an engine is asked once how busy it is.
LOAD_ROUNDS: Final = 3
# Of the answer of a replica that proves itself, in bytes: a longer one is none.
MOST_PROOF: Final = 100


class _Verdict:
    """Takes the answer to a probe: its status, and the beginning of its body."""

    is_full = False

    def __init__(self, most: int = 0) -> None:
        self.status, self.body, self._most = 0, bytearray(), most

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
        self.status = status

    def piece(self, body: bytes) -> None:
        self.body += body[: self._most - len(self.body)]

    def finish(self) -> None:
        pass


async def probe(place: Place) -> str:
    """Ask a replica how it is; return what is wrong, empty if nothing is."""
    if not place.member.owned:
        return f"its job does not listen at port {place.member.port}, or another process does"
    member, verdict, nonce = place.member, _Verdict(MOST_PROOF), secrets.token_hex(16)
    # Whoever has taken its port must not learn its key from a probe.
    header = f"x-nonce: {nonce}\r\n" if member.proves else f"authorization: Bearer {member.key}\r\n"
    try:
        await _get(place, member.health, verdict, header)
    except TimeoutError:
        return f"its health check took more than {ANSWER_S:g} s"
    except Broken as broken:
        # The head of a good answer is enough: some engines end it with the connection.
        if verdict.status != 200:
            return str(broken)
    if verdict.status != 200:
        return f"its health check answered {verdict.status}"
    if member.proves and not hmac.compare_digest(verdict.body, proof(member.key, nonce)):
        return f"another process listens at port {member.port}"
    return ""


def proof(key: str, nonce: str) -> bytes:
    """Return what a replica that proves itself answers to this nonce."""
    digest = hmac.new(key.encode(), f"health {nonce}".encode(), "sha256").hexdigest()
    return f'{{"proof":"{digest}"}}'.encode()


async def look(place: Place) -> None:
    """Probe a replica, and note what came of it."""
    place.probed(await probe(place))


async def ask_load(place: Place, names: Mapping[str, Sequence[str]]) -> EngineLoad | None:
    """Ask an engine how busy it is; None if it does not say. An answer that is too long is not read at all."""
    verdict = _Verdict(load.MOST_BYTES + 1)
    try:
        await _get(place, load.PATH, verdict, f"authorization: Bearer {place.member.key}\r\n")
    except (TimeoutError, Broken):
        return None
    if verdict.status != 200 or len(verdict.body) > load.MOST_BYTES:
        return None
    return load.read(verdict.body.decode("utf-8", "replace"), names)


async def _get(place: Place, path: str, verdict: _Verdict, header: str) -> None:
    """Raises TimeoutError and :class:`Broken`."""
    member = place.member
    lines = f"GET {path} HTTP/1.1\r\nhost: {member.host}\r\n{header}"
    async with asyncio.timeout(ANSWER_S):
        link = await connect(member.host, member.port)
        try:
            await link.ask(f"{lines}connection: close\r\n\r\n".encode(), verdict, ANSWER_S, ANSWER_S)
        finally:
            link.close()


async def keep(pools: Pools) -> None:
    """Probe all replicas for ever."""
    room, number = asyncio.Semaphore(AT_ONCE), 0

    async def in_turn(pool: Pool, place: Place) -> None:
        async with room:
            await look(place)
            names = pool.served.signals.get(place.member.revision)
            if names and place.is_healthy and place.member.owned and (number + place.member.id) % LOAD_ROUNDS == 0:
                place.told(await ask_load(place, names))

    while True:
        number += 1
        there = [(pool, place) for pool in pools.by_name.values() for place in pool.places.values()]
        await asyncio.gather(*(in_turn(pool, place) for pool, place in there))
        # Also those whose breaker closes by time alone.
        for pool in pools.by_name.values():
            pool.wake()
        await asyncio.sleep(EVERY_S)
