"""Notes of which sessions are used, written to the database every ten seconds, for what ends idle stages."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Final

from django.db import DatabaseError

from controlplane.dispatch.agent_socket import in_thread
from controlplane.jobs import web_sessions

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0


class Visits:
    """The sessions that were used since the last note."""

    def __init__(self) -> None:
        self._used: set[uuid.UUID] = set()
        self._task: asyncio.Task[None] | None = None

    def mark(self, session_id: uuid.UUID) -> None:
        """Tell that a session is used now."""
        self._used.add(session_id)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._note())

    async def _note(self) -> None:
        while self._used:
            used, self._used = self._used, set()
            try:
                await in_thread(web_sessions.visited, used)
            except DatabaseError as error:
                log.warning("that ports are used could not be noted: %s", error)
            await asyncio.sleep(EVERY_S)
