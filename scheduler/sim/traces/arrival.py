"""The content of a trace: stages that arrive, and notes made while reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from scheduler.core.model.clauses import Said, say
from scheduler.core.model.types import SCALING


@dataclass(frozen=True, slots=True)
class Arrival:
    """One stage of a trace. ``duration_s`` is its true run time on a device of speed 1.

    ``gpus`` and ``cpus`` are per node; with a ``model`` only devices of it are used. ``limit_s`` is the time limit;
    ``expected_s`` the time that its user expected. An elastic stage runs on ``nodes`` to ``most_nodes`` nodes (0: it
    has one size only); ``duration_s`` is for the least, and ``n`` times the nodes are ``n ** scaling`` times as fast.
    """

    id: str
    submit_s: float
    duration_s: float
    gpus: float
    project: str = "default"
    user: str = "trace"
    kind: str = "train"
    priority: int = 500
    nodes: int = 1
    cpus: float = 1.0
    limit_s: float | None = None
    expected_s: float | None = None
    needs: tuple[str, ...] = ()
    name: str = ""
    most_nodes: int = 0
    scaling: float = SCALING
    model: str = ""


@dataclass(frozen=True, slots=True)
class Trace(Sequence[Arrival]):
    """Arrivals in order of submission. ``said`` are notes on what was sorted, repeated or left out, to be shown with
    figures of the trace. ``left_out`` counts the rows that cannot run."""

    arrivals: tuple[Arrival, ...]
    said: tuple[Said, ...] = ()
    left_out: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as English sentences."""
        return tuple(map(say, self.said))

    @overload
    def __getitem__(self, index: int) -> Arrival: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Arrival, ...]: ...
    def __getitem__(self, index: int | slice) -> Arrival | tuple[Arrival, ...]:
        return self.arrivals[index]

    def __len__(self) -> int:
        return len(self.arrivals)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.arrivals)
