"""Assigns each part to the executor that its intent names: containers if an image was requested, else processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agents.protocol import Exit, OpenSession, Wanted
from agents.resources.adjust import Reach
from agents.runtimes import Executor, Sighting, no_more
from agents.tasks.journal import Intent


class Choice:
    """See :class:`agents.runtimes.Executor`. ``executors`` are by the names in intents; the empty is the default."""

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        self.executors = executors

    def _of(self, intent: Intent) -> Executor:
        return self.executors[intent.executor]

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        self._of(intent).prepare(wanted, intent, furnish)

    def launch(self, intent: Intent) -> None:
        self._of(intent).launch(intent)

    def look(self, intent: Intent) -> Sighting:
        return self._of(intent).look(intent)

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        self._of(intent).stop(intent, grace_s, why, save)

    def signal(self, intent: Intent, name: str) -> None:
        self._of(intent).signal(intent, name)

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        return self._of(intent).guest(intent, session, asked)

    def reach(self, intent: Intent) -> Reach:
        return self._of(intent).reach(intent)

    def reap(self, intent: Intent) -> Exit:
        return self._of(intent).reap(intent)

    def discard(self, intent: Intent) -> None:
        self._of(intent).discard(intent)
