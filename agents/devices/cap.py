"""Enforces the memory shares of parts on a shared device, if the vendor reports memory by process.

A part that exceeds its share gets a note; one that still does after a grace period is ended as out of memory, so that
its neighbours get the memory that they were promised. Whole devices and partitions need no check, and a driver that
enforces a limit itself is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from agents.decode import BoundedDecoder
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Clause, Counter, DeviceClaim, Name
from agents.supervisor.record import write_whole

# Drivers keep some memory for each process that its program cannot know of: contexts, code, queues.
SLACK: Final = 1.05
SLACK_BYTES: Final = 256 << 20
GRACE_S: Final = 10
# The detail code by which a later agent too recognises an end for this reason.
WHY: Final = "DEVICE_MEMORY"
FILE: Final = "device-memory-over.json"


@dataclass(frozen=True, slots=True)
class Over:
    """A part that uses more memory of a device than its share."""

    claim: DeviceClaim
    used_bytes: int

    @property
    def said(self) -> Clause:
        return clause(
            "DeviceMemoryOver",
            device=f"{self.claim.kind} {self.claim.index}",
            used_bytes=self.used_bytes,
            given_bytes=self.claim.memory_bytes,
        )

    @property
    def note(self) -> NoteText:
        """The note of the part."""
        return NoteText(self.said)


class MemoryCaps:
    """The memory check of one node. Not thread-safe: one loop calls it."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        self._since: dict[str, float] = {}

    def judge(
        self,
        used: Mapping[str, Mapping[int, int]],
        parts: Mapping[str, list[DeviceClaim]],
        family: Callable[[str], list[int]],
        now: float,
    ) -> tuple[dict[str, Over], list[str]]:
        """Return the parts that exceed their share, and those of them whose grace period is over.

        ``used`` has bytes by device and process, for devices that report that; ``family`` returns the processes of a
        part.
        """
        over: dict[str, Over] = {}
        for part, claims in parts.items():
            capped = [claim for claim in claims if is_capped(claim) and claim.uuid in used]
            if not capped:
                continue
            pids = set(family(part))
            for claim in capped:
                held = sum(bytes_ for pid, bytes_ in used[claim.uuid].items() if pid in pids)
                if held > claim.memory_bytes * SLACK + SLACK_BYTES:
                    over[part] = Over(claim, held)
        self._since = {part: self._since.get(part, now) for part in over}
        return over, [part for part, since in self._since.items() if now - since >= self.grace_s]


def is_share(claim: DeviceClaim) -> bool:
    """Whether others may use the device at the same time."""
    return claim.kind != "cpu" and claim.partition is None and claim.milli < 1000


def is_capped(claim: DeviceClaim) -> bool:
    """Whether a claim is a share of a device with a memory limit."""
    return is_share(claim) and claim.memory_bytes > 0


class Remembered(msgspec.Struct, frozen=True):
    """The reason of such an end, stored in the part's run folder."""

    device: Name
    used_bytes: Counter
    given_bytes: Counter


_remembered = BoundedDecoder[Remembered](Remembered)


def remember(folder: str, over: Over) -> None:
    """Store why the part is about to be ended. Raises OSError."""
    write_whole(f"{folder}/{FILE}", over.said[1])


def remembered(folder: str) -> Clause | None:
    """Return what :func:`remember` stored."""
    stored = _remembered.find(f"{folder}/{FILE}")
    return None if stored is None else clause("DeviceMemoryOver", **msgspec.structs.asdict(stored))
