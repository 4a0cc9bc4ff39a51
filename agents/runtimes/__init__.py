"""Executors, each of which runs parts in its own way. A folder scan finds them, and one conformance suite tests them.

A module of this folder is an executor if it has a class named ``EXECUTOR`` that implements :class:`Executor`.
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
    """How far a part is, as its executor sees it now. ``exit`` is set exactly if the phase is ENDED.

    ``is_orphan`` tells that its supervisor died without a result, or that a process outlived it: :meth:`Executor.reap`
    must be called. ``notes`` tell what was requested and this host could not give. ``left`` are processes that were
    killed and still exist.
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
    """Add nothing."""


class Executor(Protocol):
    """Starts parts and reports what became of them. A part is journalled before ``prepare``, and prepared once."""

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        """Prepare everything for the launch. May block: it is called in a thread. Raises Unlaunchable.

        ``furnish`` adds what the node puts into the part's folders: after they exist, and before anything by which a
        later agent would recognise a prepared part.
        """

    def launch(self, intent: Intent) -> None:
        """Start the part. Does not block. The result is seen by :meth:`look`."""

    def look(self, intent: Intent) -> Sighting:
        """Return how far the part is. Cheap; never blocks or raises."""

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        """Ask the part to end within its grace period, and kill it after that. May be called again with a shorter
        period.

        With ``save``, its stop notice asks for a checkpoint first.

        Raises OSError if the disk is too full to record this; call it again then.
        """

    def signal(self, intent: Intent, name: str) -> None:
        """Send a signal (``SIGUSR1``) to the main process."""

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        """Return the order for :mod:`agents.supervisor.session` that runs a command inside a running part. Does not
        block.

        Raises Unlaunchable if nobody can enter it.
        """

    def reach(self, intent: Intent) -> Reach:
        """Return the processes that an adjustment of a running part acts on. Does not block; ``family`` of the
        result may, shortly."""

    def reap(self, intent: Intent) -> Exit:
        """End whatever an orphan left behind. May block: it is called in a thread."""

    def discard(self, intent: Intent) -> None:
        """Remove the files of an ended part. May block."""


def discover() -> dict[str, type]:
    """Return every executor of this folder by the name of its module."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        executor = getattr(importlib.import_module(f"{__name__}.{module.name}"), "EXECUTOR", None)
        if executor is not None:
            found[module.name] = executor
    return found
