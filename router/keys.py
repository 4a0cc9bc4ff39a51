"""Who calls with a key, as the control plane says; remembered for a moment, and for longer while it is away."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from router.front import Refused
from router.protocol import Caller

log = logging.getLogger("switchyard.router")
FRESH_S: Final = 5.0
# A caller of a service that is not among theirs is looked up anew, so often at most: it may just have been made.
AGAIN_S: Final = 0.5
# While the control plane does not answer, callers that it knew go on for so long.
STALE_S: Final = 600.0
MOST: Final = 20_000
MOST_ASKED_AT_ONCE: Final = 64

Ask = Callable[[str], Awaitable[Caller]]


class Keys:
    """The callers by the digest of their key. No key is kept or logged."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Caller]] = {}

    async def caller(self, header: bytes, service: int | None = None) -> Caller:
        """Return who calls with this ``Authorization``, and wants this service. Raises :class:`Refused`."""
        scheme, _space, key = header.partition(b" ")
        if scheme.lower() != b"bearer" or not 8 <= len(key) <= 200:
            raise Refused(401, "no_key", "call with an access token of Switchyard: Authorization: Bearer yard_...")
        digest = hashlib.sha256(key.strip()).hexdigest()
        known = self._known.get(digest)
        age_s = time.monotonic() - known[0] if known is not None else FRESH_S
        if known is None or age_s >= (FRESH_S if service is None or service in known[1].services else AGAIN_S):
            caller = await self._looked_up(digest, known)
        else:
            caller = known[1]
        if not caller.user:
            raise Refused(401, "unknown_key", "this access token is unknown, revoked or expired")
        return caller

    async def _looked_up(self, digest: str, known: tuple[float, Caller] | None) -> Caller:
        task = self._asked.get(digest)
        if task is None:
            if len(self._asked) >= MOST_ASKED_AT_ONCE:
                raise Refused(503, "busy", "too many new keys at once; try again in a moment", again_s=1)
            task = self._asked[digest] = asyncio.ensure_future(self._ask(digest))
            task.add_done_callback(lambda _: self._asked.pop(digest, None))
        try:
            caller = await asyncio.shield(task)
        except (OSError, TimeoutError, ValueError) as error:
            if known is not None and time.monotonic() - known[0] < STALE_S:
                return known[1]
            log.warning("the control plane does not say who calls: %s", error)
            raise Refused(503, "no_control_plane", "nobody can say now whose key this is", again_s=2) from None
        self._known[digest] = (time.monotonic(), caller)
        self._known.move_to_end(digest)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return caller
