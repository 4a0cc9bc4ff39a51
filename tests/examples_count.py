"""How many examples a law is tried with."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

# Of Hypothesis: what a law has that names no number.
USUAL: Final = 100


def examples(count: int) -> int:
    """Return ``count``, or in a long run (``YARD_LONG``) so many times more as any other law has then."""
    return max(count, count * settings().max_examples // USUAL)
