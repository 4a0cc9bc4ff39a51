"""Delegated executors: where agents may not run on the nodes of a cluster, each part becomes one job of its engine.

One agent on a login node represents the cluster as capacity by shape (:mod:`agents.delegated.capacity`). A module of
this folder is an engine if it has a class named ``ENGINE`` that implements :class:`DelegatedEngine`; all else is common
to all engines: :mod:`agents.delegated.executor` is the agent's executor, and :mod:`agents.delegated.decision` decides
what is done about a part.

What an engine promises: a submission is repeated only if the engine has answered and does not know the job, and a job
that is found twice runs its command once. What it does not know is *unknown*, never failed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agents.notes import NoteText
from agents.protocol import Clause, Exit, PartSpec


class ForeignOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part as its foreign job: durable in ``foreign.json`` of its run folder before the engine hears of it.

    ``label`` names cluster, part and epoch, and ``fence`` is the same for all attempts at one rank of a stage.
    ``shape`` is the shape of foreign node that it was placed on, and ``devices`` how many accelerators of it. ``spec``
    has no variables and no secrets: those are in the run folder (:func:`agents.supervisor.record.ordered`, and
    ``secrets.json``).
    """

    part: str
    epoch: int
    fence: str
    label: str
    folder: str
    shape: str
    cpus: int
    memory_bytes: int
    devices: int
    spec: PartSpec


class ForeignState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A job of the engine that carries one of our labels.

    ``exit`` is set if it has ended: the engine's own word for how, which counts only where no supervisor told of the
    end. ``starts_in_s`` is when the engine expects it to start; ``why`` is the engine's reason why it waits.
    """

    part: str
    epoch: int
    fence: str
    handle: str
    state: ForeignState
    exit: Exit | None = None
    starts_in_s: float | None = None
    why: str = ""


class EngineSilent(Exception):
    """The engine did not answer, or not so that it makes sense: whether the request had an effect is unknown.

    ``why`` is a clause of :data:`agents.notes.NOTES` or :data:`agents.ends.ENDS`.
    """

    def __init__(self, why: Clause) -> None:
        self.why = why
        super().__init__(str(NoteText(why)))


class SubmissionRefused(EngineSilent):
    """The engine refused a submission for certain, and would refuse it again."""


class DelegatedEngine(Protocol):
    """One engine. All methods but ``lay_out`` are called by one thread, one at a time, and may block for as long as the
    engine's own deadline; each may raise EngineSilent. What an engine says is bounded and decoded inside.

    ``title`` names it to people. ``shares_folder`` tells that its jobs see the agent's state folder: a supervisor then
    writes logs, record and end of a part there. ``takes_again`` tells that it takes a label anew whose job has ended.
    ``lacks`` are clauses of :data:`agents.notes.NOTES` about what it cannot give. ``settle_s`` is how long an end may
    take to be seen in the folder once the engine tells of it.
    """

    title: str
    shares_folder: bool
    takes_again: bool
    lacks: tuple[Clause, ...]
    settle_s: float

    def lay_out(self, order: ForeignOrder) -> None:
        """Prepare what the job needs, in the part's run folder. Called once, in a thread of its own. Raises
        Unlaunchable."""

    def submit(self, order: ForeignOrder) -> str:
        """Submit the job under its label; return its handle. Raises SubmissionRefused if it is refused for certain.

        With the same part and epoch again, the engine either refuses the second job, or the second one does nothing.
        """

    def jobs(self) -> list[ForeignJob]:
        """Return all jobs with labels of this cluster that the engine knows, ended ones included."""

    def find(self, order: ForeignOrder) -> ForeignJob | None:
        """Look harder for one job that ``jobs`` does not list, for instance in the accounting."""

    def ask_to_stop(self, job: ForeignJob, order: ForeignOrder, grace_s: float) -> None:
        """Ask a running job to end within its grace."""

    def kill(self, job: ForeignJob) -> None:
        """End a job at once, wherever it is."""

    def signal(self, job: ForeignJob, order: ForeignOrder, name: str) -> None:
        """Send a signal (``SIGUSR1``) to the command of a running job."""

    def read(self, job: ForeignJob, order: ForeignOrder, stream: str, offset: int, most: int) -> bytes:
        """Return bytes of a stream (``out``, ``err``) from an offset. Not called where the folder is shared."""

    def last_words(self, order: ForeignOrder) -> Sequence[Clause]:
        """Return what a job left that ended before its command began, such as that its interpreter is missing."""

    def troubles(self) -> Sequence[Clause]:
        """Return what is wrong with the engine although it answers, such as that all its nodes are drained."""


@dataclass(frozen=True, slots=True)
class EngineGround:
    """What an engine gets: the cluster's tag for labels, the agent's state folder, the operator's options of the engine
    and of each shape, as the configuration file has them."""

    tag: str
    state: Path
    options: Mapping[str, Any]
    shapes: Mapping[str, Mapping[str, Any]]


def discover() -> dict[str, Any]:
    """Return every engine of this folder by the name of its module: a class called with an :class:`EngineGround`, which
    raises ValueError with a sentence for options that it does not take."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        engine = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENGINE", None)
        if engine is not None:
            found[module.name] = engine
    return found
