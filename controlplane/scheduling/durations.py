"""Converts predicted work (seconds on a device of speed 1) into the wall-clock duration that people are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.jobs import basis
from scheduler.core.model.types import Alternative, Device, Placement, Snapshot, Stage
from scheduler.core.resources.match import matches, partition_of
from scheduler.core.resources.speed import deciding, speed, speed_of

# By pool: (stages that ended by their predicted P90, predicted stages).
Held = Mapping[str, tuple[int, int]]


class DurationForecast:
    """Forecasts durations for one snapshot. ``held`` may be replaced as stages end."""

    def __init__(self, world: Snapshot, held: Held | None = None) -> None:
        self._devices = {device.id: device for node in world.nodes for device in node.devices}
        sorts: dict[tuple[object, ...], Device] = {}
        for device in self._devices.values():
            sorts.setdefault((device.kind, device.vendor, device.model, device.partitions), device)
        self._sorts, self._measured = list(sorts.values()), world.speeds
        self.held: Held = held or {}
        self._fastest: dict[tuple[tuple[Alternative, ...], str, str], float] = {}

    def plain(self, stage: Stage, placement: Placement | None = None) -> dict[str, Any]:
        """Return the forecast as the API shows it: ``p50`` and ``p90`` in seconds (``None`` if unknown) and its basis.

        ``held`` of the ``seen`` earlier stages of the pool ended by their p90.
        """
        held, seen = self.held.get(stage.pool, (0, 0))
        estimate = stage.estimate
        told: dict[str, Any] = {
            "p50": None,
            "p90": None,
            **basis.plain(estimate.basis, estimate.runs),
            "held": held,
            "seen": seen,
        }
        if not estimate.known:
            return told
        rate = self._rate(stage, placement)
        for name, work_s in (("p50", estimate.p50_s), ("p90", estimate.p90_s)):
            length_s = work_s / rate
            told[name] = round(min(length_s, stage.time_limit_s) if stage.time_limit_s else length_s, 3)
        return told

    def _rate(self, stage: Stage, placement: Placement | None) -> float:
        best = self._best(stage)
        here = best
        if placement is not None:
            held = [grant for grants in placement.grants for grant in grants]
            here = speed_of(stage.kind, stage.precision, held, self._devices, self._measured)
        # A declared duration refers to the fastest alternative.
        return here / best if stage.estimate.declared else here

    def _best(self, stage: Stage) -> float:
        key = (stage.alternatives, stage.kind, stage.precision)
        if key not in self._fastest:
            rates = []
            for way in stage.alternatives:
                ask = way.asks[deciding(way.asks)]
                rates += [
                    speed(stage.kind, stage.precision, device, self._measured, partition_of(ask, device))
                    for device in self._sorts
                    if matches(ask, device)
                ]
            self._fastest[key] = max(rates, default=1.0)
        return self._fastest[key]
