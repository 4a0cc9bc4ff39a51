"""Stores what agents report of their hosts beside the devices: interfaces, disks, file systems, and their use.

Only the newest measurement is kept. Agents send counters since boot; rates are computed here from two measurements.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db import connection, transaction

from agents.protocol import HostSample, Inventory
from controlplane.fleet import loads
from controlplane.fleet.models import Host, Node

MOST: Final = 64
LONGEST_NAME: Final = 200
# Over a longer silence the mean does not describe the present.
LONGEST_S: Final = 120.0

Counters = dict[str, dict[str, int]]


def store_inventory(node: Node, found: Inventory) -> None:
    """Store the host part of an inventory."""
    values = {
        name: [_bounded(msgspec.to_builtins(each)) for each in getattr(found, name)[:MOST]]
        for name in ("interfaces", "disks", "file_systems")
    }
    Host.objects.update_or_create(node=node, defaults=values)


_TAKE = """
INSERT INTO fleet_host AS h (node_id, interfaces, disks, file_systems, counters, per_s, free_bytes, pressure, means,
                             batch_of, batch_seq)
VALUES (%(node)s, '[]', '[]', '[]', '{}', '{}', '{}', '{}', '{}', %(of)s, %(seq)s)
ON CONFLICT (node_id) DO UPDATE SET batch_of = excluded.batch_of, batch_seq = excluded.batch_seq
WHERE h.batch_of <> excluded.batch_of OR h.batch_seq < excluded.batch_seq
RETURNING 1
"""


def register_batch(node: Node, incarnation: str, seq: int) -> bool:
    """Register a batch of measurements; return False if it, or a later one of this incarnation, was taken before."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"node": node.id, "of": incarnation, "seq": seq})
        return cursor.fetchone() is not None


def store_sample(node: Node, sample: HostSample, at: datetime) -> None:
    """Store a measurement of a host. One that is older than the stored one is ignored."""
    at -= timedelta(seconds=min(max(sample.age_s, 0.0), 3_600.0))
    counters: Counters = {
        "received": _counts(sample.received_bytes),
        "sent": _counts(sample.sent_bytes),
        "read": _counts(sample.read_bytes),
        "written": _counts(sample.written_bytes),
    }
    with transaction.atomic():
        host, _is_new = Host.objects.select_for_update().get_or_create(node=node)
        if host.at is not None and at <= host.at:
            return
        span_s = (at - host.at).total_seconds() if host.at else math.inf
        host.per_s = _per_s(host.counters, counters, span_s)
        host.means = loads.means(host.means, sample, span_s)
        host.at, host.counters = at, counters
        host.free_bytes = _counts(sample.free_bytes)
        host.pressure = {name[:40]: value for name, value in sample.pressure.items() if math.isfinite(value)}
        host.save(update_fields=["at", "counters", "per_s", "free_bytes", "pressure", "means"])


def _per_s(before: Counters, now: Counters, span_s: float) -> dict[str, dict[str, float]]:
    """Return the rate per second of each counter, without new counters and those that were reset by a reboot."""
    if not 0 < span_s <= LONGEST_S:
        return {}
    return {
        what: {
            name: round((value - before[what][name]) / span_s, 1)
            for name, value in counts.items()
            if value >= before.get(what, {}).get(name, math.inf)
        }
        for what, counts in now.items()
    }


def _counts(values: dict[str, int]) -> dict[str, int]:
    return {name[:LONGEST_NAME]: value for name, value in list(values.items())[:MOST] if 0 <= value < 1 << 63}


def _bounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:LONGEST_NAME] if isinstance(value, str) else value for name, value in values.items()}
