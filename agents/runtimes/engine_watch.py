"""Checks regularly which container engine works on this host, without blocking while one does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from agents.devices.worker import Worker
from agents.runtimes import engine_probe

# To ask an engine costs it a process or two; whether one came or went is no matter of seconds.
ASK_AGAIN_S: Final = 600.0
ASK_THE_SILENT_AGAIN_S: Final = 60.0
# An engine that is well answers faster.
PATIENCE_S: Final = 2.0


class EngineWatch:
    """The engine that containers of this host would use. ``spoken`` is its name, version and user; empty if none
    works or none has answered yet."""

    def __init__(self, own: Mapping[str, str], is_root: bool, ask: Callable[[], str] | None = None) -> None:
        self.spoken = ""
        self._own, self._is_root = own, is_root
        self._ask = ask or self._find
        self._worker: Worker | None = None
        self._asked_at = float("-inf")

    @classmethod
    def of_this_process(cls) -> EngineWatch:
        """By the agent's own environment and rights."""
        return cls(os.environ, os.geteuid() == 0)

    def look(self, patience_s: float = PATIENCE_S) -> None:
        """Start another check if it is due, and wait briefly for its result; :meth:`poll` takes a later one."""
        now = time.monotonic()
        if self._worker is None:
            self._worker = Worker("container engine")
        if self._worker.is_idle and now - self._asked_at >= (ASK_AGAIN_S if self.spoken else ASK_THE_SILENT_AGAIN_S):
            self._asked_at = now
            self._worker.ask(self._ask)
        self.poll(patience_s)

    def poll(self, patience_s: float = 0.0) -> bool:
        """Take the result, if there is one; return True if it differs from before."""
        found = self._worker.take(patience_s) if self._worker is not None else None
        if found is None or found == self.spoken:
            return False
        self.spoken = found
        return True

    def _find(self) -> str:
        engine, _ = engine_probe.find(self._own, self._is_root)
        return engine.spoken if engine is not None else ""

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
