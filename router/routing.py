"""Answers a request: whose it is, whether it may, which replica serves it, and who is asked when that one fails."""

from __future__ import annotations

import re
import time
import uuid
from typing import Final

from router.choice import Prompt
from router.front import Carried, Front, Kept, Refused
from router.keys import Keys
from router.pool import NoReplica, Place, Pool, Pools, Taken
from router.upstream import Broken, Upstream, connect

TRIES: Final = 3
# Of other paths than /v1/, health and metrics of a replica, nothing is reached from outside.
_PATH: Final = re.compile(rb"/s/([a-z0-9-]{1,63})/([a-z0-9-]{1,63})(/v1/[A-Za-z0-9_./-]{1,200})(\?[!-~]{0,500})?")
_CALL: Final = re.compile(rb"/f/([a-z0-9-]{1,63})/([a-z0-9-]{1,63})")
# A call of a function is one unit of work, whatever its event is.
_EVENT: Final = Prompt((), 0, 1)
LARGEST_UNKNOWN: Final = 65_536
MOST_IDLE: Final = 64
# A header value of a caller that is passed on.
_PLAIN: Final = re.compile(rb"[ -~]{1,200}")


class Routing:
    """What all connections share."""

    def __init__(self, pools: Pools, keys: Keys, kept: Kept) -> None:
        self.pools, self.keys, self.kept = pools, keys, kept

    def limit(self, target: bytes) -> int:
        """Return how many bytes the body of a request to this address may have."""
        pool = self._pool(target)
        return pool.served.body_bytes if pool else LARGEST_UNKNOWN

    def _pool(self, target: bytes) -> Pool | None:
        is_call = target.startswith(b"/f/")
        found = (_CALL if is_call else _PATH).fullmatch(target)
        pool = self.pools.by_name.get((found[1].decode(), found[2].decode())) if found else None
        return pool if pool is not None and pool.served.is_function == is_call else None

    async def answer(self, front: Front) -> None:
        """Answer the request of a connection. Raises :class:`Refused`."""
        request = front.request
        if request.target == b"/healthz":
            front.answer(200, b'{"status":"ok"}')
            return
        began = time.monotonic()
        pool = self._pool(request.target)
        caller = await self.keys.caller(request.key, pool.served.id if pool is not None else None)
        if pool is None or pool.served.id not in caller.services or b".." in request.target:
            text = "there is no such service that you may call: /s/PROJECT/SERVICE/v1/..., or /f/PROJECT/FUNCTION"
            raise Refused(404, "no_service", text)
        if request.method != b"POST" and (request.method != b"GET" or pool.served.is_function):
            raise Refused(405, "method", "a service answers GET and POST, a function POST")
        await self.carry(front, pool, began)

    async def carry(self, front: Carried, pool: Pool, began: float) -> None:
        """Let a replica answer a request that may be answered. Raises :class:`Refused`."""
        if not pool.admits():
            pool.refused += 1
            text = f"this service takes {pool.served.requests_per_s:g} requests a second"
            raise Refused(429, "rate_limited", text, again_s=1)
        pool.requests += 1
        try:
            await self._served(front, pool, began)
        except Refused as refused:
            # One that no replica had room for was refused, not failed.
            pool.failed += refused.status == 502
            raise

    async def _served(self, front: Carried, pool: Pool, began: float) -> None:
        prompt = _EVENT if pool.served.is_function else Prompt.of(bytes(front.request.body))
        failed: set[int] = set()
        last = ""
        for _ in range(TRIES):
            try:
                taken = await pool.take(prompt, failed if len(failed) < len(pool.places) else set())
            except NoReplica as none:
                pool.refused += 1
                raise Refused(
                    503, "no_replica", f"{none}{f'; the last one: {last}' if last else ''}", again_s=2
                ) from None
            place = taken.place
            try:
                await self._asked(front, pool, taken, began)
            except Broken as broken:
                place.failed(str(broken), is_counted=broken.is_late)
                last = str(broken)
                if broken.is_late:
                    front.abort()
                    raise Refused(502, "broken", last) from None
                if pool.served.is_function and broken.is_sent:
                    # What ran once is not run again behind the caller's back.
                    raise Refused(502, "broken", f"the replica failed while it ran this call: {last}") from None
                pool.retried += 1
                failed.add(place.member.id)
            else:
                place.served()
                return
            finally:
                taken.release()
        raise Refused(502, "broken", f"{TRIES} replicas failed; the last one: {last}")

    async def _asked(self, front: Carried, pool: Pool, taken: Taken, began: float) -> None:
        """Ask one replica, over a connection that was kept if there is one."""
        served, place = pool.served, taken.place
        while True:
            link, was_kept = await _link(place)
            front.source = link
            sink = _Timed(front, pool, taken, began)
            try:
                can_stay = await link.ask(_bytes(front, place), sink, served.first_byte_s, served.idle_s)
            except Broken as broken:
                # A replica closes a connection that was idle for long, just when it is used again.
                is_idle = was_kept and link.is_lost and not broken.is_late and "closed" in str(broken)
                if is_idle and not served.is_function:
                    continue
                raise
            finally:
                front.source = None
            if can_stay and len(place.idle) < MOST_IDLE:
                place.idle.append(link)
            else:
                link.close()
            return


class _Timed:
    """Passes an answer on to the caller, and notes when it began."""

    __slots__ = ("_asked", "_began", "_front", "_pool", "_taken")

    def __init__(self, front: Carried, pool: Pool, taken: Taken, began: float) -> None:
        self._front, self._pool, self._taken, self._began = front, pool, taken, began
        self._asked = time.monotonic()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
        now = time.monotonic()
        self._pool.count_first_byte(now - self._began)
        self._pool.errors += status >= 500
        self._taken.place.count(status, now - self._asked)
        self._taken.begun()
        self._front.let_go()
        self._front.begin(status, headers, length)

    def piece(self, body: bytes) -> None:
        self._front.piece(body)

    def finish(self) -> None:
        self._front.finish()

    @property
    def is_full(self) -> bool:
        return self._front.is_full


async def _link(place: Place) -> tuple[Upstream, bool]:
    while place.idle:
        link = place.idle.pop()
        if not link.is_lost and not link.transport.is_closing():
            return link, True
    return await connect(place.member.host, place.member.port), False


def _bytes(front: Carried, place: Place) -> bytes:
    """Return the request for a replica: the caller's, with the replica's key in the place of the caller's."""
    request, member = front.request, place.member
    found = _PATH.fullmatch(request.target)
    path = (found[3] + (found[4] or b"")).decode("ascii") if found else "/invoke"
    head = f"{request.method.decode()} {path} HTTP/1.1\r\nhost: {member.host}:{member.port}\r\n"
    head += f"authorization: Bearer {member.key}\r\n"
    if not found:
        name, number = request.call or (uuid.uuid4().hex, 1)
        head += f"x-call-id: {name}\r\nx-call-try: {number}\r\n"
    for name, value in (("content-type", request.content_type), ("accept", request.accept)):
        if _PLAIN.fullmatch(value):
            head += f"{name}: {value.decode('ascii')}\r\n"
    return f"{head}content-length: {len(request.body)}\r\n\r\n".encode() + request.body
