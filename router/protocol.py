"""The messages between the router and the control plane: a report goes up once a second, a table comes back."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

SYNC_PATH: Final = "/router/v1/sync"
KEYS_PATH: Final = "/router/v1/keys"
WAKE_PATH: Final = "/router/v1/wake"
TAKE_PATH: Final = "/router/v1/calls"
DONE_PATH: Final = "/router/v1/results"
# The upper bounds of the intervals in which times to the first byte are counted, in seconds; the last has none.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Of one message: services that are woken, and queued calls; and the longest result of one that is kept, in characters.
MOST_WOKEN: Final = 16
MOST_TAKEN: Final = 64
LARGEST_RESULT: Final = 262_144

Count = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(max_length=63)]


class Member(Struct, frozen=True):
    """A replica that has a place: where it listens, the key that it asks for, and what of it is wanted.

    A ``draining`` one gets no new request. ``revision`` is a group in ``Served.weights``. ``owned`` says that the
    replica's own processes listen at its port, and nobody else's; only then is anything sent there. One that ``proves``
    is a server of ours: its health check shows that it knows the key, before anybody looked who listens.
    """

    id: int
    revision: int
    host: str
    port: int
    key: str
    health: str
    draining: bool = False
    owned: bool = True
    proves: bool = False


class Served(Struct, frozen=True):
    """One service, as the router sees it.

    ``weights`` are shares of the requests by revision; a revision that is not there gets none unless no other can
    serve. Sizes are in bytes, times in seconds; ``wait_s`` is how long a request waits for a replica. ``signals`` maps
    by revision what is read of an engine's metrics to the names that it may have there (``router.load``).
    """

    id: int
    project: str
    name: str
    members: list[Member]
    weights: dict[int, int] = {}
    concurrency: int = 64
    queue: int = 256
    wait_s: float = 60.0
    first_byte_s: float = 60.0
    idle_s: float = 60.0
    body_bytes: int = 8 * 2**20
    requests_per_s: float = 0.0
    is_function: bool = False
    signals: dict[int, dict[str, list[str]]] = {}


class Table(Struct, frozen=True):
    """All that the router needs to know; ``calls`` are waiting to be taken (see :class:`Taken`)."""

    services: list[Served]
    calls: int = 0


class Waits(Struct, frozen=True):
    """Services of which requests wait while no replica answers."""

    services: Annotated[list[Count], Meta(min_length=1, max_length=MOST_WOKEN)]


class TakeCalls(Struct, frozen=True):
    """How many queued calls of functions a router has room for."""

    most: Annotated[int, Meta(ge=1, le=MOST_TAKEN)]


class QueuedCall(Struct, frozen=True):
    """A queued call of a function that this router is to deliver; ``number`` counts how often it was taken."""

    id: int
    number: int
    project: str
    name: str
    event: str


class Taken(Struct, frozen=True):
    """The calls that were taken, which are this router's until it tells of them or its time is over."""

    calls: list[QueuedCall]


class CallEnd(Struct, frozen=True):
    """What became of a delivery: the status and body of the answer, or ``status`` 0 and why nobody ran it."""

    id: Count
    number: Count
    status: Annotated[int, Meta(ge=0, le=599)]
    body: Annotated[str, Meta(max_length=LARGEST_RESULT)]


class CallEnds(Struct, frozen=True):
    """What became of calls."""

    calls: Annotated[list[CallEnd], Meta(max_length=MOST_TAKEN)]


class EngineLoad(Struct, frozen=True, omit_defaults=True):
    """How busy an engine says that it is; null where it does not tell.

    ``cache`` is the used share of its cache of keys and values, from 0 to 1, ``room`` the tokens that fit into it.
    """

    running: Count | None = None
    waiting: Count | None = None
    cache: Annotated[float, Meta(ge=0, le=1)] | None = None
    room: Count | None = None


class MemberNews(Struct, frozen=True):
    """How a replica is: whether it answers its health check, how many requests it is busy with, and how many tokens
    of prompts and answers these have to read and write. ``load`` is what its engine says, null if it is not asked.

    ``answers`` is how many requests it answered or failed since the last report that was taken, ``errors`` how many of
    them it failed: with a status of 500 or more, without an answer, or in the middle of one. ``first_bytes`` are counts
    by ``BOUNDS`` of the times from when it was asked.
    """

    id: Count
    healthy: bool
    outstanding: Count
    draining: bool
    fault: Annotated[str, Meta(max_length=200)] = ""
    tokens: Count = 0
    load: EngineLoad | None = None
    answers: Count = 0
    errors: Count = 0
    first_bytes: Annotated[list[Count], Meta(max_length=len(BOUNDS) + 1)] = []


class ServiceNews(Struct, frozen=True):
    """What a service did since the last report that was taken, and how many requests wait for a replica now.

    ``first_bytes`` are counts by ``BOUNDS``, and one more for what took longer. ``errors`` are answers with a status
    of 500 or more, ``cold`` requests that waited for a first replica, the longest of them ``cold_ms`` milliseconds.
    """

    id: Count
    queued: Count
    active: Count
    requests: Count
    failed: Count
    refused: Count
    retried: Count
    first_bytes: Annotated[list[Count], Meta(max_length=len(BOUNDS) + 1)]
    errors: Count = 0
    cold: Count = 0
    cold_ms: Count = 0


class Report(Struct, frozen=True):
    """What the router tells; ``router`` is a name for this process."""

    router: Name
    members: Annotated[list[MemberNews], Meta(max_length=20_000)]
    services: Annotated[list[ServiceNews], Meta(max_length=20_000)]


class AskKey(Struct, frozen=True):
    """The SHA-256 of an access token that somebody calls with."""

    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Caller(Struct, frozen=True):
    """Who calls, and the ids of the services that they may call; nobody, and none, where the token is not valid."""

    user: str
    services: list[int]
