"""A byte-pair vocabulary that is learned on the spot: text to token numbers and back."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A word carries the space before it; runs of spaces (indents) and single marks are words of their own.
WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+|\n+| +(?= )|\s|[^\sA-Za-z0-9]")

Pair = tuple[int, int]


class Vocabulary:
    """All 256 bytes, and merges of two tokens into one in the order in which they were learned.

    Any text can be encoded, and ``decode(encode(text)) == text``.
    """

    def __init__(self, merges: list[Pair]) -> None:
        self.merges = merges
        self._rank = {pair: 256 + number for number, pair in enumerate(merges)}
        self._bytes = [bytes([value]) for value in range(256)]
        for left, right in merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._bytes)

    @classmethod
    def learn(cls, text: str, size: int) -> Vocabulary:
        """Merges the most frequent neighbours in ``text`` until there are ``size`` tokens (Sennrich et al., 2016)."""
        words = sorted(Counter(WORD.findall(text)).items())
        spelled = [list(word.encode()) for word, _ in words]
        pairs: Counter[Pair] = Counter()
        where: dict[Pair, set[int]] = defaultdict(set)

        def count(number: int, sign: int) -> None:
            for pair in pairwise(spelled[number]):
                pairs[pair] += sign * words[number][1]
                where[pair].add(number)

        for number in range(len(words)):
            count(number, 1)
        merges: list[Pair] = []
        while 256 + len(merges) < size and pairs:
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            if pairs[best] == 0:
                break
            for number in where[best]:  # only the words that may hold the pair have to be counted again
                count(number, -1)
                spelled[number] = _merge(spelled[number], best, 256 + len(merges))
            for number in where.pop(best):
                count(number, 1)
            merges.append(best)
        return cls(merges)

    def encode(self, text: str) -> NDArray[np.uint16]:
        """The token numbers of ``text``."""
        numbers: list[int] = []
        for word in WORD.findall(text):
            spelling = self._known.get(word)
            if spelling is None:
                spelling = self._known[word] = self._spell(word)
            numbers.extend(spelling)
        return np.array(numbers, dtype=np.uint16)

    def decode(self, numbers: list[int]) -> str:
        """The text of token ``numbers``; bytes that are no UTF-8 become replacement marks."""
        return b"".join(self._bytes[number] for number in numbers).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"merges": self.merges}))

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        return cls([(left, right) for left, right in json.loads(path.read_text())["merges"]])

    def _spell(self, word: str) -> list[int]:
        spelling = list(word.encode())
        while len(spelling) > 1:
            token, pair = min((self._rank.get(pair, 1 << 30), pair) for pair in pairwise(spelling))
            if token == 1 << 30:
                break
            spelling = _merge(spelling, pair, token)
        return spelling


def _merge(spelling: list[int], pair: Pair, token: int) -> list[int]:
    merged: list[int] = []
    at = 0
    while at < len(spelling):
        if at + 1 < len(spelling) and (spelling[at], spelling[at + 1]) == pair:
            merged.append(token)
            at += 2
        else:
            merged.append(spelling[at])
            at += 1
    return merged
