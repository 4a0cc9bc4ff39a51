"""The processes of a run as one group: who am I, and let everybody have what each of us has.

Two kinds with one face: PyTorch's gloo under ``torchrun``, and a ring of sockets in plain Python where there is none.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Group(Protocol):
    """``rank`` counts from 0 to ``size`` - 1."""

    name: str
    rank: int
    size: int

    def gather(self, mine: Vector) -> list[Vector]:
        """The vectors of all ranks, in the order of ranks; all must have the same shape. Waits for everybody."""

    def close(self) -> None:
        """Leave. Call it at the end of a run that ended well."""


class Alone:
    """A group of one."""

    name = "alone"
    rank, size = 0, 1

    def gather(self, mine: Vector) -> list[Vector]:
        return [mine]

    def close(self) -> None:
        return


def join(framework: str) -> Group:
    """The group of this process, as ``torchrun`` or Switchyard tell it by the environment. Waits for everybody.

    Under ``torchrun``, and with one process per device, ``RANK`` and ``WORLD_SIZE`` are set; else there is one process
    per node.
    """
    rank = int(os.environ.get("RANK", os.environ.get("NODE_RANK", "0")))
    size = int(os.environ.get("WORLD_SIZE", os.environ.get("NNODES", "1")))
    if size == 1:
        return Alone()
    if framework == "torch":
        from ddp.gloo import Gloo

        return Gloo(rank, size)
    from ddp.ring import Ring

    return Ring(rank, size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def any_of(group: Group, flag: bool) -> bool:
    """Whether the flag is set anywhere: so all leave at one step, though the notice comes at different times."""
    return any(bool(each[0]) for each in group.gather(np.array([float(flag)])))


def from_first(group: Group, mine: Vector) -> Vector:
    """The vector of rank 0: only there the disk need be read."""
    return group.gather(mine)[0]
