"""What a pool may require of how far its nodes keep stages of different projects apart."""

from agents.protocol import ISOLATION


def is_below(found: str, required: str) -> bool:
    """Whether a node of level ``found`` keeps them less apart than is required; a word of older agents does."""
    return required != ISOLATION[0] and (found not in ISOLATION or ISOLATION.index(found) < ISOLATION.index(required))
