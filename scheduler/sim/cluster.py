"""Makes nodes from a short text: ``8x8`` is eight nodes of eight GPUs; ``4x8:H100,2x4:A100,3x0`` mixes them."""

from __future__ import annotations

import re

from scheduler.core.lifecycle import NodeState
from scheduler.core.types import Device, Node

GIB = 2**30
_PART = re.compile(r"(\d+)x(\d+)(?::([\w .-]+))?$")


def cluster(text: str, cores: int = 128) -> tuple[Node, ...]:
    """The nodes that ``text`` describes, each with ``cores`` cores and 8 GiB of memory per core.

    Raises ``ValueError`` for anything but ``NODESxGPUS[:MODEL]`` parts joined by commas.
    """
    nodes: list[Node] = []
    for part in text.split(","):
        found = _PART.match(part.strip())
        if not found:
            raise ValueError(
                f'"{part}" does not describe nodes; write NODESxGPUS or NODESxGPUS:MODEL, such as 8x8:H100'
            )
        count, gpus, model = int(found[1]), int(found[2]), found[3] or "GPU"
        for _ in range(count):
            name = f"node{len(nodes):05}"
            cpu = Device(f"{name}/cpu0", name, "cpu", "generic", "CPU", 0, 8 * GIB * cores, cores * 1000)
            cards = [Device(f"{name}/gpu{i}", name, "gpu", "generic", model, i, 80 * GIB) for i in range(gpus)]
            nodes.append(Node(name, name, NodeState.READY, ("default",), (cpu, *cards)))
    return tuple(nodes)
