"""Reports the agent's state to systemd: READY, a STATUS line and watchdog pings (see ``sd_notify(3)``).

The pings come from the agent's event loop, so that a stuck loop sends none and systemd restarts the agent.
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
    """The notification socket of the service, or none if systemd does not run the agent.

    The variables that name it are removed from ``environment``, so that no child of the agent can use it.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract socket.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        # Empty means any process that got the variables.
        is_ours = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        limit_s = (digits(watchdog_us) or 0) / 1e6 if is_ours else 0.0
        self.period_s = min(STATUS_S, limit_s / 3) if limit_s else STATUS_S

    def tell(self, *lines: str) -> None:
        """Send these lines as one message, without waiting for the receiver."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(errors="replace"), self._address)

    async def run(self, status: Callable[[], str]) -> None:
        """Send READY, the status and a ping for ever, three times within the watchdog's limit."""
        while True:
            line = " ".join(status().split())[:_LONGEST_STATUS]
            self.tell("READY=1", f"STATUS={line}", "WATCHDOG=1")
            await asyncio.sleep(self.period_s)
