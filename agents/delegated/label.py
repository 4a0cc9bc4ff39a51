"""Labels of foreign jobs: which cluster, which part and which epoch a job is of. They are public on the engine.

A label is ``yard-<tag>-<fence>-<epoch>-<part>``, of letters, digits and hyphens only. The tag is the node's identity,
so two installations, or two agents on one engine, never meet.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from agents.decode import digits

FENCE: Final = re.compile(r"[0-9a-f]{12}")
_LABEL: Final = re.compile(
    r"yard-([0-9a-f]{8})-([0-9a-f]{12})-([0-9]{1,10})-([A-Za-z0-9][A-Za-z0-9_-]{0,63})", re.ASCII
)


class Label(NamedTuple):
    tag: str
    fence: str
    epoch: int
    part: str

    def __str__(self) -> str:
        return f"yard-{self.tag}-{self.fence}-{self.epoch}-{self.part}"


def tag_of(node: str) -> str:
    """Return the tag of the node with this id: eight digits, the same after every restart."""
    return hashlib.sha256(node.encode()).hexdigest()[:8]


def fence_of(job: int, stage: str, rank: int) -> str:
    """Return what all attempts at one rank of a stage have in common."""
    return hashlib.sha256(f"{job}/{stage}/{rank}".encode()).hexdigest()[:12]


def read(text: str) -> Label | None:
    """Read a label; None for any other text."""
    found = _LABEL.fullmatch(text)
    epoch = digits(found[3]) if found else None
    return None if found is None or epoch is None else Label(found[1], found[2], epoch, found[4])
