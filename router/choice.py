"""Which replica gets a request: the one where it adds the least work, given what that has read already.

A prompt is a chain of blocks of text; the digest of a block stands for all of the prompt up to its end. Each replica
remembers the digests of the newest prompts that it was given, a bounded number of them, as its engine's prefix cache
does. The work of a request is its prompt without the blocks that the replica has, and the tokens that it asks for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import Decoder

BLOCK: Final = 256
BYTES_A_TOKEN: Final = 4
MOST_BLOCKS: Final = 256
MOST_REMEMBERED: Final = 16_384
USUAL_TOKENS: Final = 256
MOST_TOKENS: Final = 32_768


class _Asked(Struct):
    """What of a request says how much work it is; all else is between the caller and the replica."""

    prompt: object = None
    messages: object = None
    max_tokens: object = None
    max_completion_tokens: object = None


_read = Decoder(_Asked).decode


class Prompt:
    """The digests of the blocks of a prompt, and the work of it in tokens."""

    __slots__ = ("answer_tokens", "blocks", "prompt_tokens")

    def __init__(self, blocks: Sequence[int], prompt_tokens: int, answer_tokens: int) -> None:
        self.blocks, self.prompt_tokens, self.answer_tokens = blocks, prompt_tokens, answer_tokens

    @classmethod
    def of(cls, body: bytes) -> Prompt:
        """Read the body of a request; one that is no JSON object is a prompt without blocks."""
        try:
            asked = _read(body)
        except (DecodeError, ValidationError, RecursionError):
            return cls((), len(body) // BYTES_A_TOKEN, USUAL_TOKENS)
        text = "".join(_texts(asked.messages if asked.messages is not None else asked.prompt))
        limit = asked.max_completion_tokens or asked.max_tokens
        wanted = limit if isinstance(limit, int) and 0 < limit <= MOST_TOKENS else USUAL_TOKENS
        return cls(blocks_of(text), len(text) // BYTES_A_TOKEN, wanted)


def blocks_of(text: str) -> list[int]:
    """Return the digests of the first blocks of a text; the same beginning has the same digests."""
    digest, found = 0, []
    for start in range(0, min(len(text), MOST_BLOCKS * BLOCK) - BLOCK + 1, BLOCK):
        digest = hash((digest, text[start : start + BLOCK]))
        found.append(digest)
    return found


def _texts(value: object) -> Iterable[str]:
    """Yield the texts of a prompt or of messages, in their order; other things in them are no text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for key in ("role", "content", "text"):
            yield from _texts(value.get(key))


class Remembered:
    """The blocks that a replica was given of late."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def length(self, blocks: Sequence[int]) -> int:
        """Return how many of the first blocks are remembered."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def add(self, blocks: Iterable[int]) -> None:
        """Remember the blocks of a prompt as the newest; the oldest go."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MOST_REMEMBERED:
            self._blocks.popitem(last=False)


def work(prompt: Prompt, remembered: Remembered) -> int:
    """Return how many tokens a replica that remembers this has to compute for a prompt."""
    known = remembered.length(prompt.blocks) * BLOCK // BYTES_A_TOKEN
    return max(1, prompt.prompt_tokens - known) + prompt.answer_tokens
