"""Smoothed load of devices and nodes, as the scheduler uses it.

Means are decayed and quantised in coarse steps, so that small fluctuations cause no scheduling cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from agents.protocol import Fetched, HostSample, TelemetryBatch
from controlplane.clauses import Told, clause
from controlplane.clauses import told as sentence_of
from controlplane.fleet.models import Device, Host, Node

# The weight of a measurement halves in 20 seconds.
DECAY_S: Final = 20.0 / math.log(2)
# Older measurements are ignored, and means are recomputed at most this often.
WINDOW_S, EVERY_S = 120, 15
STEP: Final = 1 / 8
MOST_LOAD: Final = 8.0
DISK_STEPS: Final = 16
# Tools round, so a utilisation slightly above 1 is read as 1.
MOST_UTILISATION: Final = 1.05
# Steps of bandwidth are factors of the square root of two.
GBPS_STEP: Final = 0.5
MOST_GBPS: Final = 10_000.0
# The weight of a measured bandwidth halves with this many further bytes.
DECAY_BYTES: Final = 1 << 30

_MEANS = """
SELECT d.id, d.kind, d.busy, s.mean
FROM fleet_device d LEFT JOIN LATERAL (
    SELECT sum(utilisation * exp(extract(epoch FROM at - now()) / %(decay)s))
           / sum(exp(extract(epoch FROM at - now()) / %(decay)s)) AS mean
    FROM fleet_device_sample
    WHERE device_id = d.id AND at > now() - make_interval(secs => %(window)s) AND utilisation IS NOT NULL) s ON true
WHERE d.node_id = %(node)s AND d.present
"""


def settled(before: float | None, mean: float, step: float = STEP) -> float:
    """Quantise a mean; keep ``before`` while the mean is within three quarters of a step of it (hysteresis)."""
    if before is not None and abs(mean - before) <= 0.75 * step:
        return before
    return round(mean / step) * step


def decayed(before: float | None, value: float, span_s: float) -> float:
    """Return the decayed mean after one more measurement, ``span_s`` seconds after the previous one."""
    if before is None:
        return value
    return before + (value - before) * (1 - math.exp(-max(span_s, 0.0) / DECAY_S))


def means(before: Mapping[str, float], sample: HostSample, span_s: float) -> dict[str, float]:
    """Return the decayed means of a host after a sample of it: running and waiting tasks per core (``queue``), and the
    share of time in which tasks were stalled on disks (``io``) or memory (``memory``). Unmeasured values are absent."""
    told = {"queue": sample.queue, "io": sample.pressure.get("io_full"), "memory": sample.pressure.get("memory_full")}
    scales = {"queue": 1.0, "io": 100.0, "memory": 100.0}
    found = {
        name: decayed(before.get(name), min(max(value / scales[name], 0.0), MOST_LOAD), span_s)
        for name, value in told.items()
        if value is not None
    }
    if sample.disk_room_bytes is not None:
        # As it was measured: nothing of a disk that runs full may be averaged away.
        found["disk_room"] = float(min(sample.disk_room_bytes, 1 << 62))
    return {**{name: value for name, value in before.items() if name not in told}, **found}


def gbps(one: Fetched) -> float:
    """Return a transfer rate in Gbit/s; 0 if no time passed."""
    return one.size_bytes * 8e-9 / one.took_s if one.took_s > 0 else 0.0


def fault(batch: TelemetryBatch, names: Mapping[str, str]) -> Told | None:
    """Return what is implausible about these measurements; None if nothing is.

    ``names`` are those of devices by uuid.
    """
    for one in batch.fetched:
        if not 0 < gbps(one) <= MOST_GBPS:
            most, took = f"{MOST_GBPS:g}", f"{one.took_s:g}"
            return _measured("FetchedTooFast", size=one.size_bytes, took=took, most=most)
    for sample in batch.devices:
        if sample.uuid in names and not is_plausible(sample.utilisation):
            is_low = (sample.utilisation or 0.0) < 0
            bound = sentence_of(clause("AtLeast", least=0) if is_low else clause("AtMost", most=1))
            shown = f"{sample.utilisation:g}"
            name = names[sample.uuid]
            return _measured("DeviceFieldIs", device=name, field="utilisation", value=shown, fault=bound)
    return None


def _measured(code: str, /, **params: Any) -> Told:
    return sentence_of(clause("Measured", fault=sentence_of(clause(code, **params))))


def is_plausible(utilisation: float | None) -> bool:
    """Whether a utilisation is in range; an unmeasured one is."""
    return utilisation is None or 0.0 <= utilisation <= MOST_UTILISATION


def note_fetched(node: Node, fetched: Iterable[Fetched]) -> None:
    """Update the fetch bandwidth of a node; implausible values are ignored and larger transfers update_load more."""
    rates = [(one.size_bytes, rate) for one in fetched if 0 < (rate := gbps(one)) <= MOST_GBPS]
    if not rates:
        return
    with transaction.atomic():
        host, _is_new = Host.objects.select_for_update().get_or_create(node=node)
        mean = host.means.get("fetch")
        for size_bytes, rate in rates:
            mean = weighed(mean, size_bytes, rate)
        host.means = {**host.means, "fetch": mean}
        host.save(update_fields=["means"])


def weighed(mean: float | None, size_bytes: int, rate: float) -> float:
    """Return the mean rate after one more transfer; larger ones count more."""
    return rate if mean is None else mean + (rate - mean) * size_bytes / (size_bytes + DECAY_BYTES)


def update_load(node: Node) -> bool:
    """Write the load of the node and its devices if it changed by more than its fluctuation, at most every 15 seconds.
    Return whether it was recomputed."""
    due = Q(weighed_at=None) | Q(weighed_at__lt=Now() - timedelta(seconds=EVERY_S))
    if not Host.objects.filter(due, node=node).update(weighed_at=Now()):
        return False
    with connection.cursor() as cursor:
        cursor.execute(_MEANS, {"decay": DECAY_S, "window": WINDOW_S, "node": node.id})
        rows = cursor.fetchall()
    cores = [mean for _, kind, _, mean in rows if kind == "cpu" and mean is not None]
    for device, _, before, mean in rows:
        busy = None if mean is None else settled(before, min(mean, 1.0))
        if busy != before:
            Device.objects.filter(id=device).update(busy=busy)
    told = Host.objects.values_list("means", flat=True).get(node=node)
    waits = [told[name] for name in ("queue", "io", "memory") if name in told]
    # A host without a reported run queue is as loaded as its cores.
    load = max([*waits, *([] if "queue" in told else [sum(cores) / len(cores)] if cores else [])], default=0.0)
    row = Node.objects.values("load", "fetch_gbps", "disk_bytes", "disk_total_bytes").get(id=node.id)
    values = {
        "load": settled(row["load"], load),
        "fetch_gbps": stepped(row["fetch_gbps"], told.get("fetch")),
        "disk_bytes": disk_room(row["disk_bytes"], told.get("disk_room"), row["disk_total_bytes"]),
    }
    if {**row, **values} != row:
        Node.objects.filter(id=node.id).update(**values)
    return True


def disk_room(before: int, room_bytes: float | None, total_bytes: int) -> int:
    """Return how much disk space stages may ask for, in sixteenths of the disk, so that alike nodes stay alike.

    Less is taken at once, more only once it is half a step more (hysteresis). Unmeasured it is the whole disk.
    """
    if room_bytes is None or not total_bytes:
        return min(before or total_bytes, total_bytes)
    step = max(total_bytes // DISK_STEPS, 1)
    found = int(min(max(room_bytes, 0.0), total_bytes))
    if before <= found < before + step + step // 2:
        return before
    return total_bytes if found >= total_bytes else found // step * step


def stepped(before: float | None, mean: float | None) -> float | None:
    """Quantise a bandwidth in geometric steps; keep the former value if none was measured."""
    if mean is None or mean <= 0:
        return before
    exponent = settled(None if before is None else math.log2(before), math.log2(min(mean, MOST_GBPS)), GBPS_STEP)
    return float(2**exponent)
