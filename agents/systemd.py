"""Tells systemd how the agent is: READY, a STATUS line and the pings of its watchdog (see ``sd_notify(3)``).

The pings come from the agent's event loop, so that a loop that is stuck sends none and systemd starts the agent anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

from agents.decode import digits

STATUS_S: Final = 10.0
_LONGEST_STATUS: Final = 400


class Systemd:
    """The notification socket of the service, or nobody where systemd does not run the agent.

    The variables that name it are taken out of ``environment``: nothing that the agent starts may speak for it.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract socket.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        # Empty means: whoever got the variables.
        is_ours = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        limit_s = (digits(watchdog_us) or 0) / 1e6 if is_ours else 0.0
        self.period_s = min(STATUS_S, limit_s / 3) if limit_s else STATUS_S

    def tell(self, *lines: str) -> None:
        """Send these lines as one message. Whoever cannot be told is not waited for."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(errors="replace"), self._address)

    async def run(self, status: Callable[[], str]) -> None:
        """For ever: say READY, the status and that the loop goes round, three times within the watchdog's limit."""
        while True:
            line = " ".join(status().split())[:_LONGEST_STATUS]
            self.tell("READY=1", f"STATUS={line}", "WATCHDOG=1")
            await asyncio.sleep(self.period_s)
