"""The replicas of the services as the router knows them: who is there, how busy each is, and who waits."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from router.choice import USUAL_TOKENS, Prompt, Remembered, unread
from router.protocol import BOUNDS, EngineLoad, Member, MemberNews, Served, ServiceNews, Table

if TYPE_CHECKING:
    from router.upstream import Upstream

# After so many failures in a row, or probes that were not answered, a replica gets no requests for a while.
PATIENCE: Final = 3
# An agent that is restarted does not say for a few seconds who listens.
UNOWNED_PATIENCE: Final = 15
OPEN_S: Final = 5.0
# A token that is read anew takes time, and pushes one out of the cache that may be read again: it counts twice.
AFRESH: Final = 2


class NoReplica(Exception):
    """Raised where no replica takes a request: too many wait, or it waited too long."""


class Place:
    """One replica: its connections, its breaker, and its work in tokens and requests."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.idle: list[Upstream] = []
        # Tokens of prompts whose answers have not begun, and of answers that are not whole.
        self.reading = self.writing = 0
        self.outstanding = self.failures = self.missed = 0
        # It gets requests once it has answered a probe.
        self.is_healthy = False
        self.open_until = 0.0
        self.fault = "it has not answered its health check yet"
        self.remembered = Remembered()
        self.load: EngineLoad | None = None
        self.foreign = 0
        self._forget()

    def _forget(self) -> None:
        self.answers = self.errors = 0
        self.first_bytes = [0] * (len(BOUNDS) + 1)

    def takes(self, most: int, now: float) -> bool:
        """Whether it may get a request."""
        is_there = self.is_healthy and self.member.owned and not self.member.draining
        return is_there and self.outstanding < most and now >= self.open_until

    def cost(self, prompt: Prompt) -> int:
        """Return what a request costs here: tokens that others have to read and write, and those it reads anew."""
        return self.reading + self.writing + self.foreign + AFRESH * unread(prompt, self.remembered)

    def told(self, load: EngineLoad | None) -> None:
        """Take what its engine says, None if it says nothing: what it has beyond ours is the work of other routers."""
        self.load, self.foreign = load, 0
        if load is None:
            return
        self.foreign = USUAL_TOKENS * max(0, (load.running or 0) + (load.waiting or 0) - self.outstanding)
        if load.room:
            self.remembered.keep(load.room)

    def count(self, status: int, seconds: float) -> None:
        """Count an answer that has begun."""
        self.answers += 1
        self.errors += status >= 500
        self.first_bytes[bisect_left(BOUNDS, seconds)] += 1

    def failed(self, why: str, *, is_counted: bool = False) -> None:
        """Count a failure of a request, whose answer may have been counted when it began; after several in a row it
        gets none for a while."""
        self.answers += not is_counted
        self.errors += 1
        self.failures += 1
        self.fault = why[:200]
        if self.failures >= PATIENCE:
            self.open_until = time.monotonic() + OPEN_S

    def served(self) -> None:
        """Note that it has answered a request."""
        self.failures, self.open_until = 0, 0.0

    def probed(self, fault: str) -> None:
        """Note what came of a probe; empty is good."""
        if not fault:
            if not self.is_healthy:
                # It may have begun anew, with an empty cache.
                self.remembered.clear()
            self.missed, self.is_healthy, self.fault = 0, True, ""
            return
        self.missed, self.fault = self.missed + 1, fault[:200]
        if self.missed >= (PATIENCE if self.member.owned else UNOWNED_PATIENCE):
            self.is_healthy = False

    def news(self) -> MemberNews:
        """Return how it is and its counts since the last call, and begin anew."""
        is_well = self.is_healthy and time.monotonic() >= self.open_until
        tokens = self.reading + self.writing
        told = MemberNews(
            self.member.id, is_well, self.outstanding, self.member.draining, self.fault, tokens, self.load,
            self.answers, self.errors, self.first_bytes if self.answers or self.errors else [],
        )  # fmt: skip
        self._forget()
        return told

    def put_back(self, news: MemberNews) -> None:
        """Count again what a report told that was not taken."""
        self.answers += news.answers
        self.errors += news.errors
        if news.first_bytes:
            self.first_bytes = [a + b for a, b in zip(self.first_bytes, news.first_bytes, strict=True)]

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for link in self.idle:
            link.close()
        self.idle.clear()


class Taken:
    """A request's hold on a replica: what it adds to the work there."""

    __slots__ = ("_pool", "_reading", "_writing", "place")

    def __init__(self, pool: Pool, place: Place, prompt: Prompt) -> None:
        self.place, self._pool = place, pool
        self._reading, self._writing = unread(prompt, place.remembered), prompt.answer_tokens
        place.outstanding += 1
        place.reading += self._reading
        place.writing += self._writing
        place.remembered.add(prompt.blocks)

    def begun(self) -> None:
        """Note that the answer has begun: the prompt is read."""
        self.place.reading -= self._reading
        self._reading = 0

    def release(self) -> None:
        """Give back what was taken; the next that waits may look."""
        self.begun()
        self.place.outstanding -= 1
        self.place.writing -= self._writing
        self._pool.wake()


class Pool:
    """The replicas of one service, and the requests that wait for one."""

    def __init__(self, served: Served, needed: asyncio.Event) -> None:
        self.served, self._needed = served, needed
        self.places: dict[int, Place] = {}
        self.waiting: deque[asyncio.Future[None]] = deque()
        # By revision: how many requests it is behind its share.
        self.owed: dict[int, float] = {}
        self.turn = 0
        self.room, self.filled_at = float(self._burst(served)), time.monotonic()
        self._forget()

    def _forget(self) -> None:
        self.requests = self.failed = self.refused = self.retried = self.errors = self.cold = self.cold_ms = 0
        self.first_bytes = [0] * (len(BOUNDS) + 1)

    @staticmethod
    def _burst(served: Served) -> float:
        return max(1.0, served.requests_per_s * 2)

    def update(self, served: Served) -> None:
        """Take the members of a new table; replicas that are still there keep what is known of them."""
        before, self.served, self.places = self.places, served, {}
        for member in served.members:
            place = before.pop(member.id, None)
            if place is None or (place.member.host, place.member.port) != (member.host, member.port):
                if place is not None:
                    place.close()
                place = Place(member)
            place.member = member
            self.places[member.id] = place
        for place in before.values():
            place.close()
        self.owed = {revision: debt for revision, debt in self.owed.items() if revision in served.weights}
        self.wake()

    def admits(self) -> bool:
        """Whether the limit of requests per second leaves room for one more, which it then takes."""
        if not self.served.requests_per_s:
            return True
        now = time.monotonic()
        gained = (now - self.filled_at) * self.served.requests_per_s
        self.room, self.filled_at = min(self._burst(self.served), self.room + gained), now
        if self.room < 1:
            return False
        self.room -= 1
        return True

    async def take(self, prompt: Prompt, but: set[int]) -> Taken:
        """Take a replica for a request, other than those that failed it; waits while all are busy.

        Raises :class:`NoReplica`.
        """
        began = time.monotonic()
        deadline, has_waited, was_cold = began + self.served.wait_s, False, False
        while (place := self._best(prompt, but)) is None:
            if not was_cold and not self.has_healthy():
                was_cold = True
                self.cold += 1
                self._needed.set()
            if not has_waited and len(self.waiting) >= self.served.queue:
                raise NoReplica(f"{self.served.queue} requests wait for a replica already")
            await self._wait(deadline, is_first=has_waited)
            has_waited = True
        if has_waited:
            self.wake()  # there may be room for one more
        if was_cold:
            self.cold_ms = max(self.cold_ms, round((time.monotonic() - began) * 1000))
        return Taken(self, place, prompt)

    def has_healthy(self) -> bool:
        """Whether a replica answers its health check, busy or not."""
        return any(place.is_healthy and not place.member.draining for place in self.places.values())

    def is_cold(self) -> bool:
        """Whether requests wait and no replica answers."""
        return bool(self.waiting) and not self.has_healthy()

    async def _wait(self, deadline: float, *, is_first: bool) -> None:
        """Wait for a turn to look; who has looked in vain is the first again. Raises :class:`NoReplica`."""
        waiter = asyncio.get_running_loop().create_future()
        (self.waiting.appendleft if is_first else self.waiting.append)(waiter)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await waiter
        except BaseException as error:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                self.wake()  # the turn is for another
            if isinstance(error, TimeoutError):
                raise NoReplica(f"no replica took it within {self.served.wait_s:g} s") from None
            raise

    def wake(self) -> None:
        """Let the first that waits look again; it lets the next look once it has found a replica."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _best(self, prompt: Prompt, but: set[int]) -> Place | None:
        now = time.monotonic()
        free = [place for place in self.places.values() if place.takes(self.served.concurrency, now)]
        others = [place for place in free if place.member.id not in but]
        if not others:
            return None
        group = self._group({place.member.revision for place in others})
        self.turn += 1
        members = [place for place in others if group is None or place.member.revision == group]
        start = self.turn % len(members)
        return min(members[start:] + members[:start], key=lambda one: one.cost(prompt))

    def _group(self, there: Iterable[int]) -> int | None:
        """Return the revision whose turn it is by the weights; None if all that are there count alike."""
        weights = {revision: self.served.weights.get(revision, 0) for revision in there}
        total = sum(weights.values())
        if not total:
            return None
        if len(weights) == 1:
            return next(iter(weights))
        for revision, weight in weights.items():
            self.owed[revision] = self.owed.get(revision, 0.0) + weight / total
        chosen = max(weights, key=lambda revision: self.owed[revision])
        self.owed[chosen] -= 1.0
        return chosen

    def count_first_byte(self, seconds: float) -> None:
        self.first_bytes[bisect_left(BOUNDS, seconds)] += 1

    def news(self) -> ServiceNews:
        """Return the counts since the last call, and begin anew."""
        active = sum(place.outstanding for place in self.places.values())
        told = ServiceNews(
            self.served.id, len(self.waiting), active, self.requests, self.failed, self.refused, self.retried,
            self.first_bytes, self.errors, self.cold, self.cold_ms,
        )  # fmt: skip
        self._forget()
        return told

    def put_back(self, news: ServiceNews) -> None:
        """Count again what a report told that was not taken."""
        self.requests += news.requests
        self.failed += news.failed
        self.refused += news.refused
        self.retried += news.retried
        self.errors += news.errors
        self.cold += news.cold
        self.cold_ms = max(self.cold_ms, news.cold_ms)
        self.first_bytes = [a + b for a, b in zip(self.first_bytes, news.first_bytes, strict=True)]


class Pools:
    """All services by project and name. ``needed`` is set when a request waits where no replica answers."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Pool] = {}
        self.needed = asyncio.Event()
        # How many queued calls of functions the control plane has to give.
        self.calls = 0

    def update(self, table: Table) -> None:
        """Take a new table; services that are not in it any more have no replicas left."""
        before = {pool.served.id: pool for pool in self.by_name.values()}
        self.by_name, self.calls = {}, table.calls
        for served in table.services:
            key = (served.project, served.name)
            pool = before.pop(served.id, None) or Pool(served, self.needed)
            pool.update(served)
            if (deleted := self.by_name.get(key)) is not None:
                # Its name is another's by now: its replicas end when their time to drain is over.
                before[deleted.served.id] = deleted
            self.by_name[key] = pool
        for pool in before.values():
            for place in pool.places.values():
                place.close()

    def refresh(self, table: Table) -> None:
        """Take what a table says of services that are known; the others stay as they are."""
        for served in table.services:
            pool = self.by_name.get((served.project, served.name))
            if pool is not None and pool.served.id == served.id:
                pool.update(served)

    def places(self) -> list[Place]:
        return [place for pool in self.by_name.values() for place in pool.places.values()]
