"""Looks on which of its named ports each running part listens, for the reports.

That is every two seconds, and more often while one listens on none yet: somebody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from agents.link.forwards import lookers
from agents.protocol import Phase
from agents.supervisor.listeners import listener_at
from agents.tasks.node import NodeTasks

EVERY_S: Final = 2.0
SOON_S: Final = 0.25
# A part that listens on none after so many looks is looked at as seldom as others.
SOON_LOOKS: Final = 1_200


async def watch_ports(node: NodeTasks) -> None:
    """Look at the parts that name ports, for ever; a change is reported at once."""
    while True:
        is_awaited = await look(node)
        await asyncio.sleep(SOON_S if is_awaited else EVERY_S)


async def look(node: NodeTasks) -> bool:
    """Look once at each running part that names ports; return whether one of them is to listen soon."""
    loop, is_awaited = asyncio.get_running_loop(), False
    for part in [each for each in node.parts.values() if each.intent.ports and each.phase == Phase.RUNNING]:
        family = node.executor.reach(part.intent).family
        found = await loop.run_in_executor(lookers, _listening, part.intent.ports, family)
        part.looks = 0 if found else part.looks + 1
        is_awaited |= 0 < part.looks < SOON_LOOKS
        if found != part.listens:
            part.listens = found
            node.changed.set()
    return is_awaited


def _listening(ports: Sequence[int], family: Callable[[], list[int]]) -> list[int]:
    processes = family()
    return sorted({port for port in ports if listener_at(port, processes)})
