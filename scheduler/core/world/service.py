"""The service that a stage has received and its probable remaining work: inputs of time-sharing policies.

All functions take a stage in the form of the queue; for a running stage, its running form is found in the world, and
the time since it was last counted is added.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.core.model.kinds import is_accelerator, is_device
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Estimate, Placement, Running, Stage
from scheduler.core.resources import speed
from scheduler.core.resources.fleet import Rates

if TYPE_CHECKING:
    from scheduler.core.world.read_only import ReadOnlyWorld
    from scheduler.core.world.request_class import RequestClass

# Work that has overrun its prediction is expected to need this share of its time so far.
OVERRUN_SHARE: Final = 0.2
# Longer than anything runs.
UNKNOWN_S: Final = 1e12
# No estimate is taken to be surer than this: nine of ten within so many times the middle.
SUREST: Final = 1.05


def width(stage: Stage | RequestClass) -> float:
    """How many devices it asks for in its first way: accelerators where it names any, else CPU cores."""
    asks = stage.alternatives[0].asks if stage.alternatives else ()
    accelerators = [ask for ask in asks if is_accelerator(ask.kind)] or [ask for ask in asks if is_device(ask.kind)]
    return max(sum(ask.count * ask.milli for ask in accelerators) * stage.nodes / 1000, 0.001)


def since_counted_s(stage: Stage, world: ReadOnlyWorld) -> float:
    """For how long it has run since its service was last counted; 0 for one that waits."""
    running = world.running.get(stage.id)
    if running is None:
        return 0.0
    counted_at = running.started_at if running.counted_at is None else running.counted_at
    return max(world.now - counted_at, 0.0)


def attained_device_s(stage: Stage, world: ReadOnlyWorld) -> float:
    """Devices times seconds that it has received, in all attempts."""
    return stage.attained_device_s + width(stage) * since_counted_s(stage, world)


def received_s(stage: Stage, world: ReadOnlyWorld) -> dict[str, float]:
    """How long it has run on each device model, in all attempts."""
    received = dict(stage.received_s)
    running = world.running.get(stage.id)
    if running is not None:
        model = model_of(running, world)
        received[model] = received.get(model, 0.0) + since_counted_s(stage, world)
    return received


def predicted_left_s(stage: Stage, world: ReadOnlyWorld) -> float:
    """Return its probable remaining run time on a device of speed 1, by its estimate.

    Never less than a fifth of what it has received so far: a stage that overran its prediction is not expected to end
    at once.
    """
    done_s = since_counted_s(stage, world) * rate(stage, world)
    overrun_s = OVERRUN_SHARE * attained_device_s(stage, world) / width(stage)
    return max(stage.estimate.p50_s - done_s, overrun_s, 1.0)


def middle_left_s(p50_s: Rates, p90_s: Rates, ran_s: Rates) -> Rates:
    """Return the median remaining time of stages that have run for ``ran_s`` and were predicted to take ``p50_s``
    (median) and ``p90_s``; arrays of one shape, in seconds.

    The distribution is the log-logistic one through both quantiles. With a narrow estimate the remaining time falls
    while a stage runs, so shortest remaining time is known; with a wide one it rises, and the stage with the least
    service will be done first. It is always positive.
    """
    steepness = math.log(9.0) / np.log(np.maximum(p90_s / p50_s, SUREST))
    odds = steepness * np.log(np.maximum(ran_s, 1e-3) / p50_s)
    left: Rates = p50_s * np.exp(np.logaddexp(0.0, math.log(2.0) + odds) / steepness) - np.maximum(ran_s, 0.0)
    return left


def true_left_s(stage: Stage, world: ReadOnlyWorld) -> float:
    """Return the true remaining work on a device of speed 1; ``UNKNOWN_S`` outside of a simulated world."""
    if stage.truth_s is None:
        return UNKNOWN_S
    return max(stage.truth_s - since_counted_s(stage, world) * rate(stage, world), 0.0)


def rate(stage: Stage, world: ReadOnlyWorld) -> float:
    """How fast it runs where it runs; 1 for one that waits."""
    running = world.running.get(stage.id)
    if running is None:
        return 1.0
    grants = (one for rank in running.placement.grants for one in rank)
    return speed.speed_of(stage.kind, stage.precision, grants, world.ledger.devices, world.snapshot.speeds)


def model_of(running: Running, world: ReadOnlyWorld) -> str:
    """The model of the first accelerator that it holds, else of its first device."""
    grants = [one.device for rank in running.placement.grants for one in rank]
    devices = [world.ledger.devices[one] for one in grants if one in world.ledger.devices]
    devices = [device for device in devices if is_device(device.kind)]
    special = [device for device in devices if is_accelerator(device.kind)] or devices
    return special[0].model if special else ""


def as_running(
    stage: Stage, placement: Placement, now: float, *, state: State, attempt: str, estimate: Estimate
) -> Running:
    """A stage that waited as it stands when it has just begun: who it is, and what holds for it wherever it runs."""
    return Running(
        id=stage.id,
        job=stage.job,
        number=stage.number,
        name=stage.name,
        project=stage.project,
        user=stage.user,
        pool=stage.pool,
        kind=stage.kind,
        priority=stage.priority,
        state=state,
        attempt=attempt,
        placement=placement,
        started_at=now,
        estimate=estimate,
        priority_class=stage.priority_class,
        precision=stage.precision,
        preemptible=stage.preemptible,
        time_limit_s=stage.time_limit_s,
        avoid=stage.avoid,
        only=stage.only,
        site=stage.site,
        mounts=stage.mounts,
        within=stage.within,
        within_required=stage.within_required,
        eligible_at=stage.eligible_at,
    )


def as_waiting(running: Running) -> Stage:
    """Return a running stage in the form of a waiting one, so that policies treat both alike."""
    submitted_at = running.started_at if running.submitted_at is None else running.submitted_at
    return Stage(
        id=running.id,
        job=running.job,
        number=running.number,
        name=running.name,
        project=running.project,
        user=running.user,
        pool=running.pool,
        kind=running.kind,
        priority=running.priority,
        submitted_at=submitted_at,
        eligible_at=submitted_at,
        alternatives=running.alternatives,
        estimate=running.estimate,
        nodes=len(running.placement.nodes),
        priority_class=running.priority_class,
        precision=running.precision,
        preemptible=running.preemptible,
        time_limit_s=running.time_limit_s,
        avoid=running.avoid,
        only=running.only,
        site=running.site,
        mounts=running.mounts,
        within=running.within,
        within_required=running.within_required,
        attained_device_s=running.attained_device_s,
        received_s=running.received_s,
        truth_s=running.truth_s,
        deadline_at=running.deadline_at,
    )
