"""A part as its agent knows it, from its intent to its end."""

from __future__ import annotations

import os
from pathlib import Path

from agents.ends import clause
from agents.isolation.beneath import OWN, FileRights
from agents.notes import NoteText, clauses
from agents.protocol import Checkpoint, Exit, Here, Output, Phase
from agents.storage.checkpoint_watch import CheckpointWatch
from agents.storage.tree import MAX_FILES
from agents.tasks import diff
from agents.tasks.environment import PartPaths
from agents.tasks.journal import Intent
from agents.tasks.progress import ReportFile


class StartedPart:
    """A part that was started here. Its phase only ever increases."""

    def __init__(self, intent: Intent, rights: FileRights = OWN) -> None:
        self.intent = intent
        self.rights = rights
        self.phase = Phase.ACKED
        self.pid: int | None = None
        self.pid_start: int | None = None
        self.substate = ""
        self.exit: Exit | None = None
        self.stop: tuple[float, str, bool] | None = None
        self.is_stop_told = True
        self.signalled_rev = 0
        self.save_rev = 0
        self.wanted_rev = self.applied_rev = intent.spec_rev
        self.notes: list[NoteText] = []
        self.launch_notes: tuple[str, ...] = ()
        # A note while it uses more of a device than its share.
        self.over: str | None = None
        # A note while its files take up more of the disk than it asked for, or cannot be counted.
        self.on_disk: str | None = None
        self.left: tuple[int, ...] = ()
        self.is_launched = False
        self.is_busy = False
        self.is_forgotten = False
        self._final_sizes: dict[str, int] | None = None
        self.reports = ReportFile(PartPaths(Path(intent.folder)).reports)
        self.watch = CheckpointWatch(intent.folder, rights)
        self.outputs: list[Output] = []
        # Those of its named ports on which it listens, and how often in a row it was seen to listen on none.
        self.listens: list[int] = []
        self.looks = 0

    @property
    def is_live(self) -> bool:
        return self.phase < Phase.ENDED

    def known(self) -> diff.Known:
        return diff.Known(
            part=self.intent.part,
            epoch=self.intent.epoch,
            phase=self.phase,
            spec_rev=self.wanted_rev,
            devices=tuple(self.intent.devices),
            lineage=self.intent.lineage,
            stop_grace_s=self.stop[0] if self.stop else None,
            signalled_rev=self.signalled_rev,
            save_rev=self.save_rev,
        )

    def log_sizes(self) -> dict[str, int]:
        if self._final_sizes is not None:
            return self._final_sizes
        sizes = {}
        for name in (f"{self.intent.rank}.out", f"{self.intent.rank}.err"):
            try:
                sizes[name] = os.lstat(f"{self.intent.folder}/{name}").st_size
            except OSError:
                continue
        if not self.is_live:
            self._final_sizes = sizes
        return sizes

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that it confirmed and those recognised as complete, each once."""
        told = {(each.step, each.path): each for each in [*self.watch.checkpoints, *self.reports.checkpoints]}
        return list(told.values())

    def _foreign(self) -> list[str]:
        """Return a note if it saves to a place from which no attempt resumes."""
        outside = [each.path for each in self.reports.checkpoints if self.watch.is_foreign(each.path)]
        if not outside:
            return []
        return [NoteText(clause("CheckpointOutside", path=outside[-1][:200]))]

    def _cut(self) -> list[str]:
        """Return a note if its checkpoint folder has more files than are examined."""
        if not self.watch.is_cut:
            return []
        return [NoteText(clause("CheckpointsCut", most=MAX_FILES))]

    def here(self) -> Here:
        notes = [
            *self.launch_notes,
            *self.notes,
            *self._foreign(),
            *self._cut(),
            *filter(None, [self.over, self.on_disk]),
        ]
        return Here(
            part=self.intent.part,
            attempt=self.intent.attempt,
            epoch=self.intent.epoch,
            phase=self.phase,
            spec_rev=self.applied_rev,
            pid=self.pid,
            pid_start=self.pid_start,
            substate=str(self.substate),
            substate_said=clauses(self.substate),
            exit=self.exit,
            logs=self.log_sizes(),
            devices=[claim.uuid for claim in self.intent.devices],
            checkpoints=self.checkpoints(),
            progress=self.reports.progress,
            outputs=self.outputs,
            listens=self.listens if self.is_live else [],
            notes=[str(note) for note in notes],
            notes_said=[clauses(note) for note in notes],
        )
