"""When something that is kept was used last: a file's modification time, by a clock that nobody sets.

A jump of the host's clock while the agent runs makes nothing older than it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from agents.supervisor.procfs import boottime

_BEGAN: Final = time.time() - boottime()


def now_s() -> float:
    """The time as the agent's clock had it at its start, gone on without jumps."""
    return _BEGAN + boottime()


def age_s(at: float) -> float:
    """How long ago a time of a file is, by whichever of both clocks makes it younger: a jump makes nothing old."""
    return min(now_s(), time.time()) - at


def used_now(path: Path) -> None:
    """Note that a file is used just now. Raises OSError."""
    at = int(now_s() * 1e9)
    os.utime(path, ns=(at, at))
