"""Makes nodes from a short text: ``8x8`` is eight nodes of eight GPUs; ``4x8:H100,2x4:A100,3x0`` mixes them."""

from __future__ import annotations

import math
import re

from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.sentences import _
from scheduler.core.model.types import Device, Node

GIB = 2**30
_PART = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?::([\w .-]{1,100}))?")


def cluster(text: str, cores: int = 128, most: float = math.inf) -> tuple[Node, ...]:
    """Return the nodes that ``text`` describes, each with ``cores`` cores and 8 GiB of memory per core.

    Raises ``ValueError`` for anything but ``NODESxGPUS[:MODEL]`` parts joined by commas, and for more than ``most``
    devices, the CPU of each node included; they are counted before any is made.
    """
    parts = [_part(part) for part in text.split(",", 1000)]
    devices = sum(count * (gpus + 1) for count, gpus, _model in parts)
    if devices > most:
        raise ValueError(_("it has {devices:,} devices; at most {most:,.0f}").format(devices=devices, most=most))
    nodes: list[Node] = []
    for count, gpus, model in parts:
        for _each in range(count):
            name = f"node{len(nodes):05}"
            cpu = Device(f"{name}/cpu0", name, "cpu", "generic", "CPU", 0, 8 * GIB * cores, cores * 1000)
            cards = [Device(f"{name}/gpu{i}", name, "gpu", "generic", model, i, 80 * GIB) for i in range(gpus)]
            nodes.append(Node(name, name, NodeState.READY, ("default",), (cpu, *cards)))
    return tuple(nodes)


def _part(text: str) -> tuple[int, int, str]:
    """Parse a part: the number of nodes, of devices per node, and their model."""
    found = _PART.fullmatch(text.strip())
    if not found:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise ValueError(
            _('"{text}" does not describe nodes; write NODESxGPUS or NODESxGPUS:MODEL, such as 8x8:H100').format(
                text=shown
            )
        )
    return int(found[1]), int(found[2]), found[3] or "GPU"
