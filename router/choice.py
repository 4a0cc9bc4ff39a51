"""Which replica gets a request: the one where it adds the least work, given what that has read already.

A prompt is a chain of blocks of text; the digest of a block stands for all of the prompt up to its end, so that a set
of digests is a tree of prefixes. For each replica the digests of the newest prompts that it was given are remembered,
a bounded number of them, as its engine's prefix cache does. The work of a request is its prompt without the longest
beginning that the replica has, and the tokens that it asks for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import Decoder

# The first blocks are short, for prompts that share a short beginning; the others long, so that fewer are remembered.
BLOCK: Final = 256
SHORT_BLOCKS: Final = 4
LONG_BLOCK: Final = 1_024
BYTES_A_TOKEN: Final = 4
MOST_BLOCKS: Final = 768
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
    digest, start, found = 0, 0, []
    for count in range(1, MOST_BLOCKS + 1):
        end = length_of(count)
        if end > len(text):
            break
        digest = hash((digest, text[start:end]))
        found.append(digest)
        start = end
    return found


def length_of(count: int) -> int:
    """Return how many characters the first ``count`` blocks have."""
    return count * BLOCK if count <= SHORT_BLOCKS else SHORT_BLOCKS * BLOCK + (count - SHORT_BLOCKS) * LONG_BLOCK


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
    """The blocks that a replica was given of late: ``most``, at the most."""

    __slots__ = ("_blocks", "most")

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.most = MOST_REMEMBERED

    def keep(self, tokens: int) -> None:
        """Remember no more than an engine with room for so many tokens can have kept."""
        self.most = min(MOST_REMEMBERED, max(1, tokens * BYTES_A_TOKEN // LONG_BLOCK))

    def length(self, blocks: Sequence[int]) -> int:
        """Return how many of the first blocks are remembered."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Remember the blocks of a prompt as the newest, its beginning last; the oldest go."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget all of them."""
        self._blocks.clear()


def unread(prompt: Prompt, remembered: Remembered) -> int:
    """Return how many tokens of a prompt a replica that remembers this has to read."""
    known = length_of(remembered.length(prompt.blocks)) // BYTES_A_TOKEN
    return max(1, prompt.prompt_tokens - known)
