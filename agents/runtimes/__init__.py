"""Executors start parts, each in its own way; a folder scan finds them, and one conformance suite judges them.

A module of this folder is an executor when it has a class named ``EXECUTOR`` that meets :class:`Executor`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agents.ends import Unlaunchable as Unlaunchable
from agents.protocol import Exit, OpenSession, Phase, Wanted
from agents.resources.adjust import Reach
from agents.tasks.journal import Intent


@dataclass(frozen=True, slots=True)
class Sighting:
    """How far a part is, as its executor sees it now. ``exit`` is set exactly when the phase is ENDED.

    ``is_orphan`` tells that its supervisor is gone without a word, or that something outlived it: :meth:`Executor.reap`
    must be called. ``notes`` say what was asked for and this host could not give. ``left`` are processes that are
    killed and still there.
    """

    phase: Phase
    pid: int | None = None
    pid_start: int | None = None
    substate: str = ""
    exit: Exit | None = None
    is_orphan: bool = False
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


def no_more() -> None:
    """Adds nothing."""


class Executor(Protocol):
    """Starts parts and tells what became of them. A part is journalled before ``prepare``, and prepared once."""

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        """Make everything ready to launch. May block: it is called off the loop. Raises Unlaunchable.

        ``furnish`` adds what the node itself puts into the part's folders: once they are there, and before anything is
        that an agent of later would take for a part that is ready.
        """

    def launch(self, intent: Intent) -> None:
        """Let it run. Does not block. The outcome is seen by :meth:`look`."""

    def look(self, intent: Intent) -> Sighting:
        """How far the part is. Cheap, never blocks, never raises."""

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        """Ask the part to end within its grace, and end it after that. May be called again with a shorter grace.

        Where ``save``, its stop notice asks it for a checkpoint first.

        Raises OSError where the disk is too full to say so: then it is to be called again.
        """

    def signal(self, intent: Intent, name: str) -> None:
        """Send a signal (``SIGUSR1``) to the main process."""

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        """The order for :mod:`agents.supervisor.session` that runs a command inside a part that runs. Does not block.

        Raises Unlaunchable where nobody can enter it.
        """

    def reach(self, intent: Intent) -> Reach:
        """What an adjustment of a running part acts on. Does not block; the answer's ``family`` may, for moments."""

    def reap(self, intent: Intent) -> Exit:
        """End whatever an orphan left behind. May block: it is called off the loop."""

    def discard(self, intent: Intent) -> None:
        """Remove what is left of an ended part. May block."""


def discover() -> dict[str, type]:
    """Every executor of this folder by the name of its module."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        executor = getattr(importlib.import_module(f"{__name__}.{module.name}"), "EXECUTOR", None)
        if executor is not None:
            found[module.name] = executor
    return found
