"""Delivers queued calls of functions: takes them from the control plane, lets replicas run them, tells what came of it.

A call is taken for a time that is longer than it may run. One whose end could not be told in that time is taken again,
so it is delivered at least once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from router.control_link import ControlLink
from router.front import Refused, Request
from router.pool import Pools
from router.protocol import LARGEST_RESULT, MOST_TAKEN, CallEnd, QueuedCall
from router.routing import Routing
from router.upstream import Upstream

log = logging.getLogger("switchyard.router")
LOOK_S: Final = 0.1
MOST_AT_ONCE: Final = 1_024
# Of one message about ends, in characters; it has at most one result more.
TOLD_AT_ONCE: Final = 2**20
TELL_S: Final = 2.0


class Delivery:
    """A queued call on its way, in the place of a caller's connection; keeps the answer."""

    def __init__(self, call: QueuedCall) -> None:
        self.call = call
        self.source: Upstream | None = None
        self.is_full = False
        self.status, self.body = 0, bytearray()
        request = self.request = Request()
        request.method, request.target = b"POST", f"/f/{call.project}/{call.name}".encode()
        request.content_type, request.call = b"application/json", (f"{call.id}", call.number)
        request.body = bytearray(call.event.encode())

    def let_go(self) -> None:
        self.request.body = bytearray()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
        self.status = status

    def piece(self, body: bytes) -> None:
        if len(self.body) <= LARGEST_RESULT:
            self.body += body

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        self.status = 0

    def end(self, fault: str = "") -> CallEnd:
        """Return what became of it: its answer, or why there is none."""
        if fault or not self.status:
            return CallEnd(self.call.id, self.call.number, 0, fault or "the answer broke off")
        text = self.body.decode(errors="replace")
        if len(text) > LARGEST_RESULT:
            text = f"the result has more than {LARGEST_RESULT} characters, which is the most that is kept"
            return CallEnd(self.call.id, self.call.number, 413, text)
        return CallEnd(self.call.id, self.call.number, self.status, text)


class Calls:
    """The deliveries of this router."""

    def __init__(self, link: ControlLink, routing: Routing, pools: Pools) -> None:
        self._link, self._routing, self._pools = link, routing, pools
        self._ends: list[CallEnd] = []
        self._running: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """Deliver for ever."""
        while True:
            room = MOST_AT_ONCE - len(self._running)
            try:
                if self._ends:
                    await self._tell()
                if self._pools.calls and room:
                    taken = await self._link.take(min(MOST_TAKEN, room))
                    self._pools.calls = max(0, self._pools.calls - len(taken)) if taken else 0
                    for call in taken:
                        task = asyncio.create_task(self._deliver(call))
                        self._running.add(task)
                        task.add_done_callback(self._running.discard)
            except (OSError, ValueError) as error:
                # Calls that were taken and not told of come again when their time is over.
                log.info("queued calls wait: %s", error)
                await asyncio.sleep(TELL_S)
            await asyncio.sleep(LOOK_S)

    async def _tell(self) -> None:
        told: list[CallEnd] = []
        while len(told) < min(MOST_TAKEN, len(self._ends)) and sum(len(one.body) for one in told) < TOLD_AT_ONCE:
            told.append(self._ends[len(told)])
        await self._link.tell(told)
        del self._ends[: len(told)]

    async def _deliver(self, call: QueuedCall) -> None:
        delivery, fault = Delivery(call), ""
        pool = self._pools.by_name.get((call.project, call.name))
        try:
            if pool is None or not pool.served.is_function:
                raise Refused(404, "no_function", "the function is not there any more")
            await self._routing.carry(delivery, pool, time.monotonic())
        except Refused as refused:
            # 502: it may have run, and its replica failed; all else: no replica took it.
            fault = "" if refused.status == 502 else str(refused)
            if refused.status == 502:
                delivery.status, delivery.body = 502, bytearray(str(refused).encode())
        except Exception:
            log.exception("a queued call could not be delivered")
            fault = "the router failed"
        self._ends.append(delivery.end(fault))
