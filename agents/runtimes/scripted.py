"""Runs parts as entries of a table instead of processes: for tests of the link and for many simulated agents.

What a part does is decided from outside: it runs until :meth:`ScriptedExecutor.finish` or a stop ends it. The table
stands for shims and processes: it outlives an agent, and a reboot empties it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.ends import clause, told
from agents.protocol import Exit, OpenSession, Phase, Wanted
from agents.resources.adjust import Reach
from agents.runtimes import Sighting, Unlaunchable, no_more
from agents.tasks.environment import PartPaths
from agents.tasks.journal import Intent


class ScriptedExecutor:
    """See :class:`agents.runtimes.Executor`. ``launches`` counts how often each part was launched."""

    def __init__(self, boot_id: str = "boot-0") -> None:
        self.boot_id = boot_id
        self.prepared: set[str] = set()
        self.running: dict[str, Intent] = {}
        self.ends: dict[str, Exit] = {}
        self.launches: dict[str, int] = {}
        self.stops: dict[str, str] = {}
        self.signals: list[tuple[str, str]] = []

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        if wanted.spec is None or not wanted.spec.argv:
            raise Unlaunchable(clause("NoCommand"))
        if intent.part in self.prepared:
            raise Unlaunchable(clause("RunFolderExists"))
        PartPaths(Path(intent.folder)).scratch.mkdir(parents=True, exist_ok=True)
        furnish()
        self.prepared.add(intent.part)

    def launch(self, intent: Intent) -> None:
        self.launches[intent.part] = self.launches.get(intent.part, 0) + 1
        self.running[intent.part] = intent

    def finish(self, part: str, end: Exit | None = None) -> None:
        """Let a running part end."""
        del self.running[part]
        self.ends[part] = end or Exit(code=0)

    def reboot(self, boot_id: str) -> None:
        """Remove all parts, as a reboot does."""
        self.boot_id = boot_id
        self.running.clear()

    def look(self, intent: Intent) -> Sighting:
        if intent.part in self.ends:
            return Sighting(Phase.ENDED, exit=self.ends[intent.part])
        if intent.boot_id != self.boot_id:
            return Sighting(Phase.ENDED, exit=Exit(cause="NODE_REBOOT", **told(clause("Rebooted"))))
        if intent.part in self.running:
            return Sighting(Phase.RUNNING, pid=1, pid_start=1)
        return Sighting(Phase.STARTING, is_orphan=True)

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        self.stops[intent.part] = why
        if intent.part in self.running:
            self.finish(intent.part, Exit(signal=15, cause="SIGNAL", stopped=True))

    def signal(self, intent: Intent, name: str) -> None:
        self.signals.append((intent.part, name))

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        raise Unlaunchable(clause("NotEntered"))

    def reach(self, intent: Intent) -> Reach:
        return Reach(family=list)

    def reap(self, intent: Intent) -> Exit:
        self.running.pop(intent.part, None)
        return self.ends.setdefault(intent.part, Exit(cause="SUPERVISOR_LOST", detail="it was never launched"))

    def discard(self, intent: Intent) -> None:
        self.ends.pop(intent.part, None)


EXECUTOR = ScriptedExecutor
