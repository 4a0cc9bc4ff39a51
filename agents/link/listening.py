"""Looks every two seconds on which of its named ports each running part listens, for the reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from agents.link.forwards import lookers
from agents.protocol import Phase
from agents.supervisor.listeners import listener_at
from agents.tasks.node import NodeTasks

EVERY_S: Final = 2.0


async def watch_ports(node: NodeTasks) -> None:
    """Look at the parts that name ports, for ever; a change is reported at once."""
    while True:
        await look(node)
        await asyncio.sleep(EVERY_S)


async def look(node: NodeTasks) -> None:
    """Look once at each running part that names ports."""
    loop = asyncio.get_running_loop()
    for part in [each for each in node.parts.values() if each.intent.ports and each.phase == Phase.RUNNING]:
        family = node.executor.reach(part.intent).family
        found = await loop.run_in_executor(lookers, _listening, part.intent.ports, family)
        if found != part.listens:
            part.listens = found
            node.changed.set()


def _listening(ports: Sequence[int], family: Callable[[], list[int]]) -> list[int]:
    processes = family()
    return sorted({port for port in ports if listener_at(port, processes)})
