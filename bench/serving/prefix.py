"""Which replica gets a request, on a trace of conversations: the router's choice against taking turns.

Block ids of the trace become text, 2,048 characters for the 512 tokens of one, so that the router sees what it sees of
any caller: a body in JSON. How long an answer will be is not told to it. What chooses is ``router.pool`` as it is; the
replicas are simulated (``bench.serving.engine``), and time is virtual.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import quantile
from bench.serving import virtual
from bench.serving.engine import BLOCK_TOKENS, Hardware, SimulatedReplica
from router.choice import Prompt
from router.pool import Place, Pool
from router.protocol import Member, Served

CHARACTERS = 4
REPLICAS = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the trace; ``at`` in seconds."""

    at: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]

    def body(self) -> bytes:
        """Return the request as a caller would send it."""
        text = "".join(f"{block:07d} " * (BLOCK_TOKENS * CHARACTERS // 8) for block in self.blocks)
        return json.dumps({"model": "m", "prompt": text[: self.prompt_tokens * CHARACTERS], "stream": True}).encode()


def read(path: Path) -> list[Asked]:
    """Read the Mooncake trace."""
    with gzip.open(path, "rt") as lines:
        return [
            Asked(
                int(row["timestamp_ms"]) / 1000,
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(map(int, row["block_ids"].split())),
            )
            for row in csv.DictReader(lines)
        ]


class TurnPool(Pool):
    """Takes turns among the replicas, as many load balancers do."""

    def _best(self, prompt: Prompt, but: set[int]) -> Place | None:
        members = list(self.places.values())
        self.turn += 1
        return members[self.turn % len(members)]


@dataclass(slots=True)
class Outcome:
    """What came of it: share of prompt tokens that were cached, and times to the first token in seconds."""

    hit: float
    firsts: list[float]

    @property
    def mean_s(self) -> float:
        return sum(self.firsts) / len(self.firsts)

    def at(self, share: float) -> float:
        return quantile(self.firsts, share)


def pool_of(kind: type[Pool], count: int = REPLICAS) -> Pool:
    """Return a pool of so many replicas, all well."""
    members = [Member(n, 1, "127.0.0.1", 1, "", "/health") for n in range(1, count + 1)]
    made = kind(Served(1, "bench", "m", members, concurrency=10_000, queue=10_000, wait_s=1e6))
    made.update(made.served)
    for place in made.places.values():
        place.probed("")
    return made


async def _replay(trace: Sequence[Asked], kind: type[Pool], hardware: Hardware) -> Outcome:
    pool = pool_of(kind)
    replicas = {number: SimulatedReplica(hardware) for number in pool.places}
    tasks = [asyncio.create_task(one.work()) for one in replicas.values()]
    loop = asyncio.get_running_loop()
    firsts: list[float] = []

    async def ask(asked: Asked) -> None:
        came = loop.time()
        taken = await pool.take(Prompt.of(asked.body()), set())
        work = replicas[taken.place.member.id].ask(asked.blocks, asked.prompt_tokens, asked.answer_tokens)
        await work.first
        taken.begun()
        firsts.append(loop.time() - came)
        await work.whole
        taken.release()

    async with asyncio.TaskGroup() as group:
        for asked in trace:
            await asyncio.sleep(max(0.0, asked.at - trace[0].at - loop.time()))
            group.create_task(ask(asked))
    for task in tasks:
        task.cancel()
    read = sum(one.prompt_tokens for one in replicas.values())
    return Outcome(sum(one.cached_tokens for one in replicas.values()) / read, firsts)


def replay(trace: Sequence[Asked], kind: type[Pool], hardware: Hardware) -> Outcome:
    """Send the requests of a trace at their times."""
    return virtual.run(_replay(trace, kind, hardware))
