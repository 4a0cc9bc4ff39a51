"""Measures how much disk space the files of each part take up, and finds the parts that take up more than they asked.

Only parts that asked for disk space are measured. Each look walks the part's work and scratch folders with the rights
of its user; it is bounded in entries, and the pause after it grows with how long it took. What the kernel has not freed
yet (files that are deleted but still open) is not seen, and neither is what a container writes outside these folders.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agents.decode import BoundedDecoder
from agents.ends import clause
from agents.isolation.beneath import FileRights, Folder
from agents.notes import NoteText
from agents.protocol import Clause, Counter
from agents.storage.staging import INPUTS
from agents.supervisor.record import write_whole
from agents.tasks.environment import PartPaths

EVERY_S: Final = 30
# A part that takes up too much is looked at again after this, and ended if it still does.
AGAIN_S: Final = 10.0
# A walk takes at most a twentieth of the time.
REST: Final = 20
MOST_ENTRIES: Final = 50_000
BLOCK_BYTES: Final = 512
# The detail code by which a later agent too recognises an end for this reason.
WHY: Final = "DISK_SPACE"
FILE: Final = "disk-over.json"


@dataclass(frozen=True, slots=True)
class DiskTaken:
    """What the files of a part take up; at least so much if it ``is_part`` of them, because there were too many or some
    could not be read."""

    used_bytes: int
    is_part: bool = False


def measure(folders: Iterable[Path], rights: FileRights, most: int = MOST_ENTRIES) -> DiskTaken:
    """Return what the regular files below these folders take up, without laid out inputs. Blocks.

    A file with several names counts once.
    """
    used, seen, is_part = 0, set[tuple[int, int]](), False
    for path in folders:
        left = most
        try:
            with Folder(str(path), rights) as folder:
                for name, status in folder.walk(most=most):
                    left -= 1
                    if name.startswith(f"{INPUTS}/"):
                        continue
                    if left < 0:
                        raise OSError(f"more than {most} files")
                    if status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    used += status.st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue  # it has not been made, or the part ends
        except OSError:
            is_part = True
    return DiskTaken(used, is_part)


@dataclass(slots=True)
class _DiskAccount:
    due_at: float = 0.0
    found: DiskTaken = DiskTaken(0)
    was_over: bool = False
    is_over: bool = False


class DiskUse:
    """The accounts of the parts of one node. One task looks; others read."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.every_s, self.again_s = every_s, min(every_s, AGAIN_S)
        self._accounts: dict[str, _DiskAccount] = {}

    def due(self, parts: Iterable[str], now: float) -> list[str]:
        """Return which of these parts to look at now, and forget all others."""
        self._accounts = {part: self._accounts.get(part, _DiskAccount()) for part in parts}
        return [part for part, account in self._accounts.items() if account.due_at <= now]

    def look(self, part: str, given_bytes: int, folder: str, rights: FileRights) -> None:
        """Measure a part now. Blocks."""
        places = PartPaths(Path(folder))
        began = time.monotonic()
        found = measure((places.work, places.scratch), rights)
        ended = time.monotonic()
        account = self._accounts.get(part)
        if account is None:
            return
        account.found, account.was_over = found, account.is_over
        account.is_over = found.used_bytes > given_bytes
        pause_s = self.again_s if account.is_over else self.every_s
        account.due_at = ended + max(pause_s, REST * (ended - began))

    def used_bytes(self, part: str) -> int:
        """Return what the part took up when it was last looked at."""
        account = self._accounts.get(part)
        return account.found.used_bytes if account else 0

    def over(self, part: str, given_bytes: int) -> Clause | None:
        """Return that a part takes up more than it asked for; None if it does not."""
        account = self._accounts.get(part)
        if account is None or not account.is_over:
            return None
        return clause("DiskOver", used_bytes=account.found.used_bytes, given_bytes=given_bytes)

    def is_to_end(self, part: str) -> bool:
        """Whether two looks in a row found that the part takes up too much."""
        account = self._accounts.get(part)
        return account is not None and account.is_over and account.was_over

    def note(self, part: str, given_bytes: int) -> NoteText | None:
        """Return the note of a part that takes up too much, or of which not all could be measured."""
        account = self._accounts.get(part)
        if (over := self.over(part, given_bytes)) is not None:
            return NoteText(over)
        return NoteText(clause("DiskUnmeasured")) if account is not None and account.found.is_part else None


class _DiskOver(msgspec.Struct, frozen=True):
    used_bytes: Counter
    given_bytes: Counter


_remembered = BoundedDecoder[_DiskOver](_DiskOver)


def remember(folder: str, over: Clause) -> None:
    """Store in the part's run folder why it is about to be ended. Raises OSError."""
    write_whole(f"{folder}/{FILE}", over[1])


def remembered(folder: str) -> Clause | None:
    """Return what :func:`remember` stored."""
    stored = _remembered.find(f"{folder}/{FILE}")
    return None if stored is None else clause("DiskOver", **msgspec.structs.asdict(stored))


def room_bytes(free_bytes: int, used_and_given: Iterable[tuple[int, int]]) -> int:
    """Return how much disk space parts may ask for in all: what is free, and what parts use of what they asked for."""
    return free_bytes + sum(min(used, given) for used, given in used_and_given)
