"""The nodes of a pool as a scenario describes them."""

from __future__ import annotations

import re
from collections import Counter

from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import NodeState


def nodes_of(pool: Pool) -> tuple[str, int]:
    """Return the shape of its nodes, such as ``8x8:H100``, and how many cores each has: as many as the largest."""
    sorts: Counter[tuple[int, str]] = Counter()
    cores = 1
    for node in pool.nodes.exclude(state=NodeState.LOST).prefetch_related("devices"):
        devices = [device for device in node.devices.all() if device.present]
        cards = [device.model for device in devices if device.kind != "cpu"]
        cores = max([cores, *(device.capacity_milli // 1000 for device in devices if device.kind == "cpu")])
        model = Counter(cards).most_common(1)[0][0] if cards else ""
        sorts[len(cards), re.sub(r"[^\w .-]", " ", model).strip()[:100]] += 1
    parts = [f"{count}x{cards}" + (f":{model}" if model else "") for (cards, model), count in sorted(sorts.items())]
    return ",".join(parts) or "1x0", min(cores, 4096)
