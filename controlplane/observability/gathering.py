"""Samples as they are gathered, in the order that decides which are left out where there are too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.observability.catalogue import BY_NAME

# Of one metric no more label sets are told: a scrape must stay readable, whatever people create.
MOST: Final = 5_000


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, the last one without a bound, and the sum of what was measured."""

    buckets: list[int]
    amount: float = 0.0


@dataclass(slots=True)
class Gathered:
    """The samples by metric and labels. Each metric keeps its first :data:`MOST`, and tells how many more there are.

    Add what is older first: then series that Prometheus has stay when others come.
    """

    values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=lambda: defaultdict(dict))
    histograms: dict[str, dict[tuple[str, ...], Histogram]] = field(default_factory=lambda: defaultdict(dict))
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def set(self, metric: str, value: float | None, *labels: str) -> None:
        """Set one value; nothing is said of what is unknown."""
        assert len(labels) == len(BY_NAME[metric].labels), metric
        if value is None:
            return
        known = self.values[metric]
        if labels in known or len(known) < MOST:
            known[labels] = float(value)
        else:
            self.left_out[metric] += 1

    def add(self, metric: str, value: float, *labels: str) -> None:
        """Add to a value that begins at 0."""
        self.set(metric, self.values[metric].get(labels, 0.0) + value, *labels)

    def observe(
        self, metric: str, bounds: Sequence[float], bucket: int, count: int, amount: float, *labels: str
    ) -> None:
        """Add a count to the bucket of a histogram."""
        known = self.histograms[metric]
        if labels not in known:
            if len(known) * (len(bounds) + 3) >= 4 * MOST:
                self.left_out[metric] += 1
                return
            known[labels] = Histogram([0] * (len(bounds) + 1))
        if bucket <= len(bounds):
            known[labels].buckets[bucket] += count
            known[labels].amount += amount

    def more(self, metrics: Mapping[str, int]) -> None:
        """Note series that were not even read."""
        for metric, count in metrics.items():
            if count > 0:
                self.left_out[metric] += count
