"""Runs the operator's health checks, which decide whether the node accepts tasks, and hooks around each task.

The checks of a folder run at the start, every few minutes, and those named ``start-…`` before each task. A folder of
hooks has ``prolog`` and ``epilog``, for all pools or in a subfolder for one. A failure keeps new tasks away, with its
reason, until the check or hook passes; a task that was about to start is requeued without blame. Checks and hooks see
nothing of a job's environment.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from agents.ends import Unlaunchable, clause
from agents.protocol import PartSpec
from agents.supervisor.record import read_whole, write_whole
from agents.tasks import scripts

EVERY_S: Final = 300
CHECK_S: Final = 30.0
HOOK_S: Final = 60.0
BEFORE_START: Final = "start-"
FILE: Final = "hooks.json"
_POOL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
log = logging.getLogger("switchyard.agent")


class NodeUnfit(Unlaunchable):
    """Raised if the node is not fit to run a task; the task itself is not at fault."""

    cause = "NODE_UNFIT"


class HealthChecks:
    """The checks and hooks of one node. ``changed`` is called whenever the set of failures changes."""

    def __init__(
        self, checks: Path | None, hooks: Path | None, changed: Callable[[], None], every_s: float = EVERY_S
    ) -> None:
        """Raises ValueError or OSError if a folder cannot be used."""
        for folder in (checks, hooks):
            if folder is not None:
                scripts.listed(folder)
        self.checks = checks
        self.hooks = hooks
        self.every_s = every_s
        self._changed = changed
        self._failing: dict[str, str] = {}
        # A failed hook runs again only with the next task, so it keeps tasks away for a limited time only.
        self._until: dict[str, float] = {}

    def sentences(self) -> list[str]:
        """Return the failures that keep tasks away, as ``<check>: <its message>``."""
        now = time.monotonic()
        return [f"{name}: {said}" for name, said in sorted(self._failing.items()) if self._until.get(name, now) >= now]

    async def run(self) -> None:
        """Run every check again and again, for ever."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self.every_s)
            self._changed()  # the time limit of a failed hook may have passed

    def look(self) -> None:
        """Run every check once. Blocks."""
        if self.checks is None:
            return
        try:
            programs = scripts.listed(self.checks)
        except (OSError, ValueError) as error:
            self._note("health checks", str(error))
            return
        self._note("health checks", "")
        names = {path.name for path in programs}
        for gone in [name for name in self._failing if name not in names and name not in self._until]:
            self._note(gone, "")
        for path in programs:
            self._note(path.name, scripts.run(path, {}, CHECK_S))

    def before_start(self, folder: str, part: str, spec: PartSpec, uid: int | None) -> None:
        """Run the checks of a start and the prolog. Blocks. Raises NodeUnfit."""
        env = variables(part, spec, uid)
        for path in scripts.listed(self.checks) if self.checks is not None else []:
            if path.name.startswith(BEFORE_START):
                self._judge(path.name, scripts.run(path, env, CHECK_S), for_a_while=False)
        if self._hook("epilog", spec.pool) is not None:
            # Recorded first: the epilog must clean up after the prolog, also after a crash.
            write_whole(f"{folder}/{FILE}", {"pool": spec.pool, "env": env})
        if (prolog := self._hook("prolog", spec.pool)) is not None:
            self._judge("prolog", scripts.run(prolog, env, HOOK_S), for_a_while=True)

    def is_due(self, folder: str) -> bool:
        """Whether an epilog has to run after the end of the task with this folder."""
        return self.hooks is not None and read_whole(f"{folder}/{FILE}") is not None

    def after_end(self, folder: str) -> None:
        """Run the epilog if one is due. Blocks."""
        told = read_whole(f"{folder}/{FILE}") if self.hooks is not None else None
        if not told:
            return
        env = told.get("env")
        path = self._hook("epilog", str(told.get("pool", "")))
        if path is not None and isinstance(env, dict):
            said = scripts.run(path, {str(name): str(value) for name, value in env.items()}, HOOK_S)
            self._note("epilog", said, for_a_while=True)

    def _judge(self, name: str, said: str, *, for_a_while: bool) -> None:
        self._note(name, said, for_a_while=for_a_while)
        if said:
            raise NodeUnfit(clause("NodeUnfit", check=name, said=said))

    def _note(self, name: str, said: str, *, for_a_while: bool = False) -> None:
        before = self.sentences()
        self._failing.pop(name, None)
        self._until.pop(name, None)
        if said:
            self._failing[name] = said
            if for_a_while:
                self._until[name] = time.monotonic() + self.every_s
        if self.sentences() != before:
            log.warning("health check %s: %s", name, said or "passes again")
            self._changed()

    def _hook(self, name: str, pool: str) -> Path | None:
        """Return the hook of this name for a pool: the pool's own, else that of all pools."""
        if self.hooks is None:
            return None
        own = [self.hooks / pool / name] if _POOL.fullmatch(pool) else []
        return next((path for path in (*own, self.hooks / name) if path.is_file()), None)


def variables(part: str, spec: PartSpec, uid: int | None) -> Mapping[str, str]:
    """Return the variables that describe a task to hooks."""
    return {
        "YARD_PART": part,
        "YARD_JOB": str(spec.job),
        "YARD_STAGE": spec.stage,
        "YARD_PROJECT": spec.project,
        "YARD_POOL": spec.pool,
        "YARD_UID": "" if uid is None else str(uid),
        "YARD_DEVICES": ",".join(claim.uuid for claim in spec.devices if claim.kind != "cpu"),
        "YARD_CHECKPOINT_DIR": spec.checkpoint_dir,
        "YARD_OUTPUT_DIR": spec.output_dir,
    }
