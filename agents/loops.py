"""Restarts the loops of a node when they fail, and reports the failures.

Otherwise a loop that ended with a line in a log would leave a node that looks healthy and does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from agents.ends import clause
from agents.notes import NoteText

log = logging.getLogger("switchyard.agent")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
# A failure older than this is not reported any more.
CALM_S: Final = 120.0
_LONGEST_REASON: Final = 160

Loop = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class LoopFault:
    """How often something failed since it last worked, the time of the last failure, and its reason."""

    count: int
    at: float
    reason: str


class Loops:
    """The loops of one node. ``on_change`` is called whenever there is something new to report."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._faults: dict[str, LoopFault] = {}

    async def keep(self, name: str, loop: Loop) -> None:
        """Run ``loop`` until it returns. If it raises it is started again, after a growing pause."""
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await loop()
                return
            except Exception as error:
                log.exception("%s failed, and is started again", name)
                if time.monotonic() - began > CALM_S:
                    pause = FIRST_PAUSE_S
                self.note(name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    @contextmanager
    def careful(self, name: str) -> Iterator[None]:
        """Run one step of many: an error in it is reported, and the other steps run."""
        try:
            yield
        except Exception as error:
            if name not in self._faults:
                log.exception("%s failed", name)
            self.note(name, error)

    def note(self, name: str, error: BaseException) -> None:
        """Record a failure of this name. The caller has logged it; this reports it to people."""
        now = time.monotonic()
        former = self._faults.get(name)
        count = former.count + 1 if former is not None and now - former.at < CALM_S else 1
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._faults[name] = LoopFault(count, now, " ".join(reason.split())[:_LONGEST_REASON])
        self._on_change()

    def notes(self) -> list[NoteText]:
        """Return a note for everything that failed and has not worked for long enough since."""
        since = time.monotonic() - CALM_S
        self._faults = {name: fault for name, fault in self._faults.items() if fault.at >= since}
        return [_note(name, fault) for name, fault in sorted(self._faults.items())]


def _note(name: str, fault: LoopFault) -> NoteText:
    # Coarse, so that it does not change with each report.
    often = "LoopFailedOnce" if fault.count == 1 else "LoopFailed" if fault.count < 10 else "LoopFailsAgain"
    return NoteText(clause(often, loop=name, error=fault.reason))
