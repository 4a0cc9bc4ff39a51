"""The isolation of projects that a pool may require of its nodes."""

from agents.protocol import ISOLATION


def is_below(found: str, required: str) -> bool:
    """Whether level ``found`` is weaker than required; an unknown word of an older agent is."""
    return required != ISOLATION[0] and (found not in ISOLATION or ISOLATION.index(found) < ISOLATION.index(required))
