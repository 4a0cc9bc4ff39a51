"""Watches the checkpoint folder of a part: reports complete checkpoints, and deletes those that need not be kept.

Its state is in ``watch.json`` of the part's run folder, so a restarted agent continues it.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Annotated, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.isolation.beneath import OWN, FileRights
from agents.protocol import Checkpoint, Counter, PartSpec, Small, Text
from agents.storage import checkpoints
from agents.supervisor.procfs import boottime
from agents.supervisor.record import write_whole
from agents.supervisor.saving import WATCHED

PERIOD_S: Final = float(os.environ.get("YARD_AGENT_CHECKPOINTS_S", "10"))
EMPTY_PERIOD_S: Final = 3 * PERIOD_S
# The largest share of time spent on scans: folders with very many files are scanned less often.
SHARE: Final = 0.05
REPORTED: Final = 3
REST_PERIOD_S: Final = 3600.0


def begin(run_folder: str, spec: PartSpec, in_use: str = "", rights: FileRights = OWN) -> None:
    """Store what to watch, and which checkpoints exist already, before the part starts. Raises OSError.

    ``in_use`` is a folder of this node that is kept as long as the part runs (see ``agents.tasks.local.expire``).
    """
    if not spec.checkpoint_dir:
        return
    known = checkpoints.discover(spec.checkpoint_dir, rights) if spec.attempt_number > 1 else []
    told = {
        "folder": spec.checkpoint_dir,
        "rank": spec.rank,
        "in_use": in_use,
        "keep": spec.keep_checkpoints,
        "resume": os.path.relpath(spec.resume_from, spec.checkpoint_dir) if spec.resume_from else "",
        "known": [[each.path, each.modified_ns] for each in checkpoints.ordered(known)[:100]],
    }
    write_whole(f"{run_folder}/{WATCHED}", told)


_Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class WatchedFolder(msgspec.Struct, frozen=True):
    """The state that :func:`begin` stores: the folder, and the checkpoints from before. ``keep`` is how many are kept
    (0: all)."""

    folder: Text = ""
    rank: Small = 0
    in_use: Text = ""
    keep: Counter = 0
    resume: Text = ""
    known: Annotated[list[tuple[Text, _Nanoseconds]], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=list
    )


_watched = BoundedDecoder[WatchedFolder](WatchedFolder)


class CheckpointWatch:
    """The watch of one part. ``look`` blocks and runs off the loop, one at a time; the rest is read on the loop."""

    def __init__(self, run_folder: str, rights: FileRights = OWN) -> None:
        self._rights = rights
        self._note = f"{run_folder}/{WATCHED}"
        self._told: WatchedFolder | None = None
        self._known: set[tuple[str, int]] = set()
        self._found: list[tuple[int, str, float]] = []
        self._next_at = boottime() + PERIOD_S
        self._looked = False
        self.is_looking = False
        # Whether there are more files than are scanned.
        self.is_cut = False

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the newest complete checkpoints of this part."""
        now = boottime()
        return [Checkpoint(step, path, round(max(0.0, now - at), 3)) for step, path, at in self._found]

    def is_foreign(self, path: str) -> bool:
        """Whether a checkpoint that the part reported is outside its folder: no attempt resumes from there."""
        folder = self._read().folder
        place = os.path.normpath(os.path.join(folder, path))
        return bool(folder) and place != folder and not place.startswith(folder + "/")

    def _read(self) -> WatchedFolder:
        """Return the stored state once :func:`begin` has written it."""
        if self._told is None:
            self._told = _watched.find(self._note)
            self._known = set(self._told.known) if self._told is not None else set()
        return self._told or WatchedFolder()

    def is_due(self) -> bool:
        return not self.is_looking and boottime() >= self._next_at

    def needs_last_scan(self) -> bool:
        """Whether the part ran long enough to be scanned; checkpoints of a shorter one are found by its next
        attempt."""
        return self._looked or boottime() >= self._next_at

    def look(self) -> bool:
        """Scan the folder once; return whether there is news to report. Deletes superseded checkpoints."""
        began = time.monotonic()
        # If anything below fails, the next scan is not immediate.
        self._looked, self._next_at = True, boottime() + PERIOD_S
        told = self._read()
        if in_use := told.in_use:
            with contextlib.suppress(OSError):
                os.utime(in_use)
        folder = told.folder
        if not folder or told.rank:
            # Only rank 0 confirms; the other ranks see the same folder, or one without checkpoints.
            self._next_at = boottime() + REST_PERIOD_S if in_use else float("inf")
            return False
        was_cut = self.is_cut
        found, self.is_cut = checkpoints.discovered(folder, self._rights)
        if told.keep:
            for each in checkpoints.superseded(found, told.keep, [told.resume]):
                checkpoints.remove(folder, each.path, self._rights)
        now, wall_ns = boottime(), time.time_ns()
        fresh = [each for each in checkpoints.ordered(found) if (each.path, each.modified_ns) not in self._known]
        before = [(step, path) for step, path, _ in self._found]
        self._found = [
            (each.step, f"{folder}/{each.resume}".rstrip("/"), now - max(0, wall_ns - each.modified_ns) / 1e9)
            for each in fresh[:REPORTED]
            if each.resume is not None
        ]
        period = PERIOD_S if found else EMPTY_PERIOD_S
        self._next_at = boottime() + max(period, (time.monotonic() - began) / SHARE)
        return was_cut != self.is_cut or before != [(step, path) for step, path, _ in self._found]
