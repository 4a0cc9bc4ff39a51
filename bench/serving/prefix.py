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
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path

from bench.figures import quantile
from bench.serving import virtual
from bench.serving.engine import BLOCK_TOKENS, LLAMA_8B, LLAMA_70B, Hardware, SimulatedReplica
from bench.serving.router import PATH, router
from deploy.local.port import free_port
from router.choice import Prompt
from router.pool import Place, Pool
from router.protocol import Member, Served

CHARACTERS = 4
REPLICAS = 4
HTTP_REQUESTS = 400
AT_ONCE = 8


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
    made = kind(Served(1, "bench", "m", members, concurrency=10_000, queue=10_000, wait_s=1e6), asyncio.Event())
    made.update(made.served)
    for place in made.places.values():
        place.probed("")
    return made


async def _replay(trace: Sequence[Asked], kind: type[Pool], hardware: Hardware, *, is_told: bool) -> Outcome:
    pool = pool_of(kind)
    for place in pool.places.values():
        if is_told:
            place.remembered.keep(hardware.blocks * BLOCK_TOKENS)
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


def replay(trace: Sequence[Asked], kind: type[Pool], hardware: Hardware, *, is_told: bool = True) -> Outcome:
    """Send the requests of a trace at their times; ``is_told`` says that replicas tell the size of their cache."""
    return virtual.run(_replay(trace, kind, hardware, is_told=is_told))


def measure(traces: Path) -> tuple[dict[str, float], list[str]]:
    """Return the figures of the second half of the trace. Constants of the choice were found on the first half."""
    trace = read(traces / "llm_requests" / "mooncake_conversation.csv.gz")
    half = trace[len(trace) // 2 :]
    figures: dict[str, float] = {}
    for suffix, hardware in (("", LLAMA_70B), ("_8b", LLAMA_8B)):
        turns, chosen = replay(half, TurnPool, hardware), replay(half, Pool, hardware)
        blind = replay(half, Pool, hardware, is_told=False)
        figures |= {
            f"prefix_hit_ratio{suffix}": chosen.hit / turns.hit,
            f"ttft_ratio{suffix}": chosen.mean_s / turns.mean_s,
            f"ttft_p50_ratio{suffix}": chosen.at(0.5) / turns.at(0.5),
            f"ttft_p95_ratio{suffix}": chosen.at(0.95) / turns.at(0.95),
            f"prefix_hit{suffix}": chosen.hit,
            f"ttft_mean_s{suffix}": chosen.mean_s,
            f"blind_hit_ratio{suffix}": blind.hit / turns.hit,
            f"blind_ttft_ratio{suffix}": blind.mean_s / turns.mean_s,
        }
    part = half[:HTTP_REQUESTS]
    with tempfile.TemporaryDirectory(prefix="yard-bench-") as folder:
        over_http = asyncio.run(_over_http(Path(folder), part))
    directly = asyncio.run(_directly(part))
    figures["prefix_http_same_pct"] = 100 * sum(map(eq, over_http, directly)) / len(part)
    remarks = f"""prefix_*, ttft_*: {len(half)} requests, the second half of Mooncake's conversation trace, on
{REPLICAS} SIMULATED replicas, against taking turns; ttft_ratio is of the means. Without suffix: Llama 3.1 70B on 8 H100
each; _8b: Llama 3.1 8B on one H100 each (constants and their sources in bench/serving/engine.py)
blind_*: replicas do not tell the size of their cache
prefix_http_same_pct: of {len(part)} requests through the router's process, {AT_ONCE} at once, those that went where
the same choice said in the simulation"""
    return figures, remarks.splitlines()


async def _directly(trace: Sequence[Asked]) -> list[int]:
    """Return where the choice sends requests of which so many are there at once, without a router's process."""
    pool, chosen = pool_of(Pool), []
    for start in range(0, len(trace), AT_ONCE):
        taken = [await pool.take(Prompt.of(each.body()), set()) for each in trace[start : start + AT_ONCE]]
        chosen += [one.place.member.id for one in taken]
        for one in taken:
            one.release()
    return chosen


async def _over_http(folder: Path, trace: Sequence[Asked]) -> list[int]:
    """Return where a router sends the same requests: each arrives before the next is sent; all are then answered."""
    chosen: list[int] = []
    gate, arrived = asyncio.Event(), asyncio.Event()

    def serve(number: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    if head.startswith(b"POST"):
                        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                        opened = gate
                        chosen.append(number)
                        arrived.set()
                        await opened.wait()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            writer.close()

        return answer

    ports = [free_port(23_200 + 100 * n) for n in range(REPLICAS)]
    servers = [await asyncio.start_server(serve(n), "127.0.0.1", port) for n, port in enumerate(ports, 1)]
    door = router(folder, ports)
    own = await asyncio.to_thread(door.__enter__)
    try:
        for start in range(0, len(trace), AT_ONCE):
            asked = []
            for each in trace[start : start + AT_ONCE]:
                asked.append(asyncio.create_task(_ask(own, each.body())))
                await asyncio.wait_for(arrived.wait(), 30)
                arrived.clear()
            gate.set()
            await asyncio.gather(*asked)
            gate = asyncio.Event()
    finally:
        await asyncio.to_thread(door.__exit__, None, None, None)
        for server in servers:
            server.close()
    return chosen


async def _ask(port: int, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer yard_of-the-bench\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the router answered {answer[:200]!r}")
