"""A simulated replica of a language model: a prefix cache of a stated size, and steps of a stated cost.

Like vLLM with chunked prefill, it works in steps: each reads the weights and the cached keys and values of all running
requests, writes one token of each, and reads up to ``step_tokens`` tokens of the prompts that came first. Whole blocks
of prompts stay in the cache, of which the least recently used go when there is no room; a request that has no room
waits. Not modelled: the processor's own work, preemption, and the time of the network.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Hardware:
    """A model on its accelerators. Sizes in bytes; ``flops`` and ``bytes_per_s`` are those that are reached."""

    weights: float
    parameters: float
    layers: int
    width: int
    cached_bytes: int
    memory: float
    flops: float
    bytes_per_s: float
    step_tokens: int = 8_192

    @property
    def blocks(self) -> int:
        """How many blocks of prompts it can keep."""
        return int(self.memory / self.cached_bytes / BLOCK_TOKENS)

    def read_s(self, tokens: int, before: int) -> float:
        """Return how long it reads ``tokens`` of a prompt after the first ``before``: two operations a weight, and
        four a layer, channel and earlier token."""
        seen = tokens * (before + tokens / 2)
        return (2 * self.parameters * tokens + 4 * self.layers * self.width * seen) / self.flops

    def write_s(self, cached_tokens: int) -> float:
        """Return how long a step takes that writes one token of each running request."""
        return (self.weights + cached_tokens * self.cached_bytes) / self.bytes_per_s


# Shapes of the models as their configuration files say; of the H100 SXM what its data sheet says (989 TFLOPS dense in
# bfloat16, 3.35 TB/s, 80 GB). Assumed: 45 % of the operations and 70 % of the bandwidth are reached, 90 % of the memory
# is used (vLLM's default), 4 GB a device are for activations.
H100_FLOPS, H100_BYTES_PER_S, H100_BYTES, SPARE = 0.45 * 989e12, 0.7 * 3.35e12, 0.9 * 80e9, 4e9
LLAMA_70B = Hardware(
    141e9,
    70.6e9,
    80,
    8_192,
    80 * 2 * 8 * 128 * 2,
    8 * (H100_BYTES - SPARE) - 141e9,
    8 * H100_FLOPS,
    8 * H100_BYTES_PER_S,
)
LLAMA_8B = Hardware(
    16.1e9, 8.03e9, 32, 4_096, 32 * 2 * 8 * 128 * 2, H100_BYTES - SPARE - 16.1e9, H100_FLOPS, H100_BYTES_PER_S
)
# An L4: 121 TFLOPS dense in bfloat16, 300 GB/s, 24 GB; vLLM reads 2,048 tokens a step on devices of this size.
LLAMA_8B_L4 = Hardware(
    16.1e9, 8.03e9, 32, 4_096, 32 * 2 * 8 * 128 * 2, 0.9 * 24e9 - 2e9 - 16.1e9, 0.45 * 121e12, 0.7 * 300e9, 2_048
)


class PrefixCache:
    """The blocks of prompts that are kept; those of running requests are held."""

    def __init__(self, most: int) -> None:
        self.most, self.reserved = most, 0
        self._held: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()

    def length(self, blocks: Sequence[int]) -> int:
        """Return how many of the first blocks are kept."""
        for count, block in enumerate(blocks):
            if block not in self._held and block not in self._free:
                return count
        return len(blocks)

    def take(self, blocks: Sequence[int], more: int) -> bool:
        """Hold the blocks of a request, and room for ``more`` that it writes; False if there is no room now."""
        fresh = sum(block not in self._held for block in blocks)
        if len(self._held) + fresh + self.reserved + more > self.most and self._held:
            return False
        for block in blocks:
            self._free.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self.reserved += more
        while self._free and len(self._held) + len(self._free) + self.reserved > self.most:
            self._free.popitem(last=False)
        return True

    def give(self, blocks: Sequence[int], more: int) -> None:
        """Let go of what a request held: of its blocks the last are the first to go."""
        self.reserved -= more
        for block in reversed(blocks):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._free[block] = None


@dataclass(eq=False, slots=True)
class Work:
    """A request as a replica sees it; ``cached`` is how many tokens of its prompt were kept."""

    blocks: Sequence[int]
    prompt_tokens: int
    answer_tokens: int
    first: asyncio.Future[None]
    whole: asyncio.Future[None]
    cached: int = 0
    read: int = 0
    written: float = 0.0


@dataclass
class SimulatedReplica:
    """One replica; :meth:`work` runs for ever. It counts the tokens of prompts and those that were cached."""

    hardware: Hardware
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache: PrefixCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.hardware.blocks)
        self._waiting: deque[Work] = deque()
        self._reading: deque[Work] = deque()
        self._writing: list[Work] = []
        self._asked = asyncio.Event()

    def ask(self, blocks: Sequence[int], prompt_tokens: int, answer_tokens: int) -> Work:
        """Take a request; its futures say when its first token is there, and its last."""
        loop = asyncio.get_running_loop()
        work = Work(blocks, prompt_tokens, answer_tokens, loop.create_future(), loop.create_future())
        self._waiting.append(work)
        self._asked.set()
        return work

    async def work(self) -> None:
        """Work on what is asked."""
        loop = asyncio.get_running_loop()
        while True:
            self._admit()
            if not self._reading and not self._writing:
                self._asked.clear()
                await self._asked.wait()
                continue
            cached = sum(each.prompt_tokens + int(each.written) for each in self._writing)
            step_s = self.hardware.write_s(cached)
            if self._reading:
                took, finished = self._read()
                await asyncio.sleep(step_s + took)
                self._write(1.0)
                self._begin(finished)
                continue
            # Until one is whole nothing changes but by a request that comes.
            steps = min(each.answer_tokens - each.written for each in self._writing)
            began = loop.time()
            self._asked.clear()
            try:
                async with asyncio.timeout(step_s * steps):
                    await self._asked.wait()
                # A step that has begun is finished first.
                done = math.ceil((loop.time() - began) / step_s)
                await asyncio.sleep(max(0.0, began + done * step_s - loop.time()))
                self._write(float(done))
            except TimeoutError:
                self._write(steps)

    def _admit(self) -> None:
        while self._waiting:
            work = self._waiting[0]
            kept = self.cache.length(work.blocks)
            if not self.cache.take(work.blocks, -(-work.answer_tokens // BLOCK_TOKENS)):
                return
            self._waiting.popleft()
            work.cached = work.read = min(kept * BLOCK_TOKENS, work.prompt_tokens - 1)
            self.prompt_tokens += work.prompt_tokens
            self.cached_tokens += work.cached
            self._reading.append(work)

    def _read(self) -> tuple[float, list[Work]]:
        room, took, finished = self.hardware.step_tokens, 0.0, []
        while self._reading and room:
            work = self._reading[0]
            tokens = min(room, work.prompt_tokens - work.read)
            took += self.hardware.read_s(tokens, work.read)
            work.read += tokens
            room -= tokens
            if work.read >= work.prompt_tokens:
                finished.append(self._reading.popleft())
        return took, finished

    def _begin(self, finished: list[Work]) -> None:
        for work in finished:
            work.first.set_result(None)
            work.written = 1.0
            self._writing.append(work)
        self._write(0.0)

    def _write(self, steps: float) -> None:
        still: list[Work] = []
        for work in self._writing:
            work.written += steps
            if work.written >= work.answer_tokens - 1e-6:
                self.cache.give(work.blocks, -(-work.answer_tokens // BLOCK_TOKENS))
                work.whole.set_result(None)
            else:
                still.append(work)
        self._writing = still
