"""The router's calls to the control plane: a report a second that brings the table back, and who calls with a key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from router.pool import Pools
from router.protocol import (
    DONE_PATH,
    KEYS_PATH,
    SYNC_PATH,
    TAKE_PATH,
    WAKE_PATH,
    AskKey,
    CallEnd,
    CallEnds,
    Caller,
    QueuedCall,
    Report,
    Table,
    TakeCalls,
    Taken,
    Waits,
)

log = logging.getLogger("switchyard.router")
EVERY_S: Final = 1.0
ANSWER_S: Final = 5.0
LARGEST: Final = 64 * 2**20


class ControlLink:
    """The connection to the control plane at ``url``; ``secret`` is the router's own."""

    def __init__(self, url: str, secret: str, name: str) -> None:
        self._name = name
        self._client = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=ANSWER_S, trust_env=False
        )

    async def caller(self, digest: str) -> Caller:
        """Return who calls with the key of this digest. Raises OSError or ValueError."""
        return msgspec.json.decode(await self._post(KEYS_PATH, msgspec.json.encode(AskKey(digest))), type=Caller)

    async def wake(self, services: Sequence[int]) -> Table:
        """Say that requests for these services wait and no replica answers; return how they stand. Raises OSError or
        ValueError."""
        return msgspec.json.decode(await self._post(WAKE_PATH, msgspec.json.encode(Waits(list(services)))), type=Table)

    async def take(self, most: int) -> list[QueuedCall]:
        """Take queued calls of functions, which are then this router's to deliver. Raises OSError or ValueError."""
        answer = await self._post(TAKE_PATH, msgspec.json.encode(TakeCalls(most)))
        return msgspec.json.decode(answer, type=Taken).calls

    async def tell(self, ends: Sequence[CallEnd]) -> None:
        """Tell what became of calls. Raises OSError or ValueError."""
        await self._post(DONE_PATH, msgspec.json.encode(CallEnds(list(ends))))

    async def _post(self, path: str, body: bytes) -> bytes:
        try:
            answer = await self._client.post(path, content=body, headers={"content-type": "application/json"})
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        if answer.status_code != 200:
            raise OSError(f"it answered {answer.status_code}")
        if len(answer.content) > LARGEST:
            raise ValueError("its answer is too long")
        return answer.content

    async def sync(self, pools: Pools) -> None:
        """Send one report and take the table. Raises OSError or ValueError; what was to be told is told next time."""
        told = {pool: pool.news() for pool in pools.by_name.values()}
        of_places = {place: place.news() for place in pools.places()}
        report = Report(self._name, list(of_places.values()), list(told.values()))
        try:
            table = msgspec.json.decode(await self._post(SYNC_PATH, msgspec.json.encode(report)), type=Table)
        except (OSError, ValueError):
            for pool, news in told.items():
                pool.put_back(news)
            for place, counts in of_places.items():
                place.put_back(counts)
            raise
        pools.update(table)

    async def keep(self, pools: Pools) -> None:
        """Report for ever. While the control plane is away, the last table holds."""
        is_away = False
        while True:
            try:
                await self.sync(pools)
                if is_away:
                    log.info("the control plane answers again")
                is_away = False
            except (OSError, ValueError) as error:
                if not is_away:
                    log.warning("the control plane does not answer, the last table holds: %s", error)
                is_away = True
            await asyncio.sleep(EVERY_S)
