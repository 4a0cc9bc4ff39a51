"""Counts of times to the first byte, by ``router.protocol.BOUNDS`` and one more for what took longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from router.protocol import BOUNDS


def empty_counts() -> list[int]:
    """Return counts that are all zero."""
    return [0] * (len(BOUNDS) + 1)


def added(*rows: Sequence[int]) -> list[int]:
    """Return the sum of rows of counts; one that is shorter, or empty, counts as zero from there on."""
    return [sum(each) for each in zip_longest(empty_counts(), *rows, fillvalue=0)]
