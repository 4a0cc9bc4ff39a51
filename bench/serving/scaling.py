"""How many replicas a service has, on a trace of requests a second: the autoscaler against a fixed number.

``controlplane.services.autoscale`` and ``.reconcile`` decide once a second, as the worker lets them, from what the
router would report; ``router.pool`` chooses; the replicas are simulated (``bench.serving.engine``), time is virtual.
The fixed number has the same device-hours: where that is no whole number, the share lies between its neighbours'.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.serving import virtual
from bench.serving.engine import LLAMA_8B_L4, Hardware, SimulatedReplica
from controlplane.services import autoscale
from controlplane.services.autoscale import Bounds, Moment, Signals
from controlplane.services.reconcile import ReplicaHere, ReplicaStanding, Wish, reconcile
from router.choice import Prompt
from router.pool import Pool
from router.protocol import BOUNDS, Member, Served

HARDWARE = LLAMA_8B_L4
MOST = 40
# What the service file says: target and limit were found on the first half of the trace, the rest are the defaults.
TARGET = 11.0
CONCURRENCY = 13
SLO_S = 2.0
# From the submission of a replica's job to its first answer: measured with the built-in server, and one that loads.
START_S, SLOW_START_S = 2.0, 60.0
WARM_S = 240.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the trace; ``at`` in seconds."""

    at: float
    prompt_tokens: int
    answer_tokens: int


@dataclass
class Scaled:
    """What came of it after the warm-up: the share within the objective, and the mean number of replicas."""

    within: float
    replicas: float
    changes: int


@dataclass
class _Service:
    """A service whose replicas start, drain and stop, and what its router counted."""

    hardware: Hardware
    start_s: float
    pool: Pool = field(init=False)
    engines: dict[int, SimulatedReplica] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    drains: dict[int, float] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    minutes: dict[int, list[int]] = field(default_factory=dict)
    waiting: int = 0
    changes: int = 0

    def __post_init__(self) -> None:
        self.pool = Pool(
            Served(1, "bench", "m", [], concurrency=CONCURRENCY, wait_s=1e6, queue=100_000), asyncio.Event()
        )

    def start(self, *, is_ready: bool = False) -> None:
        number = self.changes = self.changes + 1
        now = asyncio.get_running_loop().time()
        self.began[number] = now - (self.start_s if is_ready else 0.0)
        self.engines[number] = SimulatedReplica(self.hardware)
        self.tasks[number] = asyncio.create_task(self.engines[number].work())

    def standing(self, number: int, now: float) -> ReplicaStanding:
        if number in self.drains:
            return ReplicaStanding.DRAINING
        is_ready = now - self.began[number] >= self.start_s
        return ReplicaStanding.READY if is_ready else ReplicaStanding.STARTING

    def tell_router(self, now: float) -> None:
        """Give the router its table: the replicas that answer."""
        members = [
            Member(n, 1, "127.0.0.1", 1, "", "/health", n in self.drains)
            for n in self.began
            if now - self.began[n] >= self.start_s
        ]
        self.pool.update(Served(1, "bench", "m", members, concurrency=CONCURRENCY, wait_s=1e6, queue=100_000))
        for place in self.pool.places.values():
            if not place.is_healthy:
                place.probed("")
        self.pool.wake()

    def signals(self, now: float) -> Signals:
        places = self.pool.places.values()
        minute = int(now // 60)
        counts = [self.minutes.get(each, [0] * (len(BOUNDS) + 1)) for each in (minute - 1, minute)]
        return Signals(
            len(self.pool.waiting),
            sum(place.outstanding for place in places),
            [a + b for a, b in zip(*counts, strict=True)],
            0.0,
            sum(place.reading + place.writing for place in places),
            self.start_s,
        )

    def follow(self, wanted: int, now: float) -> None:
        """Do what the plan says, as a worker does."""
        here = []
        for number in self.began:
            place = self.pool.places.get(number)
            outstanding = place.outstanding if place else 0
            drains_s = now - self.drains[number] if number in self.drains else 0.0
            here.append(
                ReplicaHere(
                    number, 1, self.standing(number, now), outstanding, not outstanding and drains_s > 1, drains_s
                )
            )
        plan = reconcile(Wish(1, wanted, drain_s=300.0), here)
        for _ in plan.start:
            self.start()
        for number in plan.drain:
            self.drains[number] = now
            self.changes += 1
        for number in plan.stop:
            del self.began[number], self.drains[number], self.engines[number]
            self.tasks.pop(number).cancel()

    def count(self, seconds: float, now: float) -> None:
        minute = self.minutes.setdefault(int(now // 60), [0] * (len(BOUNDS) + 1))
        minute[bisect_left(BOUNDS, seconds)] += 1


async def _replay(
    trace: Sequence[Arrival], hardware: Hardware, start_s: float, bounds: Bounds, first: int, warm_s: float
) -> Scaled:
    service, loop = _Service(hardware, start_s), asyncio.get_running_loop()
    for _ in range(first):
        service.start(is_ready=True)
    service.tell_router(0.0)
    firsts: list[float] = []
    used_s = 0.0
    before = service.changes

    async def ask(number: int, arrival: Arrival) -> None:
        came = loop.time()
        # Without a prefix that another has: the trace does not say what was asked.
        prompt = Prompt((), arrival.prompt_tokens, 256)
        taken = await service.pool.take(prompt, set())
        engine = service.engines[taken.place.member.id]
        blocks = [(number << 32) + n for n in range(-(-arrival.prompt_tokens // 512))]
        work = engine.ask(blocks, arrival.prompt_tokens, max(1, arrival.answer_tokens))
        await work.first
        taken.begun()
        service.count(loop.time() - came, loop.time())
        if came >= warm_s:
            firsts.append(loop.time() - came)
        await work.whole
        taken.release()

    async def control() -> None:
        nonlocal used_s, before
        wanted, history = first, list[Moment]()
        while True:
            await asyncio.sleep(1.0)
            now = loop.time()
            if now < warm_s:
                before = service.changes
            else:
                used_s += len(service.began)
            wanted, history = autoscale.wanted(wanted, bounds, service.signals(now), history, now)
            service.tell_router(now)
            service.follow(wanted, now)

    follower = asyncio.create_task(control())
    async with asyncio.TaskGroup() as group:
        for number, arrival in enumerate(trace):
            await asyncio.sleep(max(0.0, arrival.at - trace[0].at - loop.time()))
            group.create_task(ask(number, arrival))
        ended, used = loop.time(), used_s
        changes = service.changes - before
    follower.cancel()
    for task in service.tasks.values():
        task.cancel()
    within = sum(one <= SLO_S for one in firsts) / len(firsts)
    return Scaled(within, used / (ended - warm_s), changes)


def replay(trace: Sequence[Arrival], bounds: Bounds, first: int, start_s: float, warm_s: float) -> Scaled:
    """Send the requests of a trace at their times."""
    return virtual.run(_replay(trace, HARDWARE, start_s, bounds, first, warm_s))


def read(path: Path) -> list[Arrival]:
    """Read the Azure trace."""
    with gzip.open(path, "rt") as lines:
        return [
            Arrival(
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(lines)
        ]


def compare(trace: Sequence[Arrival], target: float, start_s: float, warm_s: float) -> tuple[Scaled, float]:
    """Return what came of the autoscaler, and the share within the objective of a fixed number that costs the same."""
    first = 8
    scaled = replay(trace, Bounds(1, MOST, target), first, start_s, warm_s)
    low = math.floor(scaled.replicas)
    shares = [replay(trace, Bounds(n, n, target), n, start_s, warm_s).within for n in (low, low + 1)]
    return scaled, shares[0] + (shares[1] - shares[0]) * (scaled.replicas - low)


def measure(traces: Path) -> tuple[dict[str, float], list[str]]:
    """Return the figures of the trace, and of its second half hour alone."""
    trace = read(traces / "llm_requests" / "AzureLLMInferenceTrace_conv.csv.gz")
    middle = trace[0].at + (trace[-1].at - trace[0].at) / 2
    half = [one for one in trace if one.at >= middle - WARM_S]
    figures: dict[str, float] = {}
    for suffix, asked, start_s in (
        ("", trace, START_S),
        ("_second_half", half, START_S),
        ("_slow_start", trace, SLOW_START_S),
    ):
        scaled, fixed = compare(asked, TARGET, start_s, WARM_S)
        figures |= {
            f"autoscale_points{suffix}": 100 * (scaled.within - fixed),
            f"autoscale_within_pct{suffix}": 100 * scaled.within,
            f"autoscale_fixed_within_pct{suffix}": 100 * fixed,
            f"autoscale_replicas{suffix}": scaled.replicas,
            f"autoscale_changes{suffix}": scaled.changes,
        }
    remarks = f"""autoscale_*: the Azure conversation trace after {WARM_S:g} s to warm up, on SIMULATED replicas:
Llama 3.1 8B on one L4 each (constants and their sources in bench/serving/engine.py); share of the requests whose
first token came within {SLO_S:g} s against a fixed number with the same device-hours; the target was found on its
first half
a replica starts in {START_S:g} s, as measured with the built-in server; _slow_start: in {SLOW_START_S:g} s"""
    return figures, remarks.splitlines()
