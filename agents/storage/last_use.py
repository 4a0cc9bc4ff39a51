"""The last use of cached files: their modification time, by a clock that is never set.

A jump of the host's clock while the agent runs ages nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from agents.supervisor.procfs import boottime

_BEGAN: Final = time.time() - boottime()


def now_s() -> float:
    """Return the time of the host's clock at the agent's start, advanced without jumps."""
    return _BEGAN + boottime()


def age_s(at: float) -> float:
    """Return the age of a file's time by the clock that makes it younger, so that a jump ages nothing."""
    return min(now_s(), time.time()) - at


def used_now(path: Path) -> None:
    """Record that a file is used now. Raises OSError."""
    at = int(now_s() * 1e9)
    os.utime(path, ns=(at, at))
