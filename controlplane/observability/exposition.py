"""The text of ``/metrics``, gathered at most every few seconds for all servers together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from django.core.cache import cache
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from redis.exceptions import RedisError

from controlplane import counted
from controlplane.observability import fleet, jobs, platform, providers, tallies
from controlplane.observability.catalogue import METRICS, Metric
from controlplane.observability.gathering import Gathered, Histogram

# How long a text serves all who ask. A scrape that comes later than that gets a newer one, so counters never fall.
KEPT_S: Final = 4
PATIENCE_S: Final = 8.0
LOOK_S: Final = 0.02
BOUNDS: Final = {
    "switchyard_job_wait_seconds": tallies.WAIT_BOUNDS,
    "switchyard_job_start_prediction_error_seconds": tallies.START_ERROR_BOUNDS,
    "switchyard_scheduler_cycle_duration_seconds": counted.CYCLE_BOUNDS,
    "switchyard_http_request_duration_seconds": counted.REQUEST_BOUNDS,
}
_alone = threading.Lock()


def text(*, openmetrics: bool) -> str:
    """Return all metrics as of a few seconds ago at most, as OpenMetrics 1.0 or in Prometheus' own format.

    One process computes it, the others wait for it. Without Redis each server computes its own, one at a time.
    """
    key = f"metrics:{'openmetrics' if openmetrics else 'prometheus'}"
    try:
        if (known := _known_or_claimed(key)) is not None:
            return known
    except RedisError:
        with _alone:
            return _render(openmetrics=openmetrics)
    try:
        made = _render(openmetrics=openmetrics)
        _quietly(lambda: cache.set(key, made, KEPT_S))
    finally:
        _quietly(lambda: cache.delete(f"{key}:finding"))
    return made


def _quietly(what: Any) -> None:
    try:
        what()
    except RedisError:
        pass


def _known_or_claimed(key: str) -> str | None:
    """Return the text that is kept, after waiting for who computes it; None if the caller is to compute it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (known := cache.get(key)) is not None:
            return str(known)
        if cache.add(f"{key}:finding", 1, round(PATIENCE_S)):
            return None
        time.sleep(LOOK_S)
    return None


def gather() -> Gathered:
    """Gather all samples. Raises ``DatabaseError``."""
    began = time.perf_counter()
    found = Gathered()
    platform.gather(found)
    jobs.gather(found)
    fleet.gather(found)
    providers.gather(found)
    try:
        with counted.connect() as redis:
            platform.gather_from_redis(found, redis)
        found.set("switchyard_redis_up", 1)
    except RedisError:
        found.set("switchyard_redis_up", 0)
    for metric, count in sorted(found.left_out.items()):
        found.set("switchyard_metric_series_left_out", count, metric)
    found.set("switchyard_collection_seconds", time.perf_counter() - began)
    return found


def _render(*, openmetrics: bool) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(gather()))
    encode = generate_openmetrics if openmetrics else generate_latest
    return encode(registry).decode()


class _Collector:
    """What was gathered, in the form of the client library."""

    def __init__(self, found: Gathered) -> None:
        self._found = found

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric.kind == "histogram":
                if histograms := self._found.histograms.get(metric.name):
                    yield _histogram(metric, histograms)
            elif values := self._found.values.get(metric.name):
                yield _family(metric, values)


def _family(metric: Metric, values: dict[tuple[str, ...], float]) -> Family:
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=[])
        for labels in values:
            info.add_metric([], dict(zip(metric.labels, labels, strict=True)))
        return info
    sort = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = sort(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, histograms: dict[tuple[str, ...], Histogram]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(str(float(bound)) for bound in BOUNDS[metric.name]), "+Inf"]
    for labels, one in histograms.items():
        below, buckets = 0, []
        for bound, count in zip(bounds, one.buckets, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(labels, buckets, sum_value=one.amount)
    return family
