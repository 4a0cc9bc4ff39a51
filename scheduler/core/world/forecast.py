"""Predicts run times, and the ends of running stages from their progress."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.model.kinds import is_accelerator, is_device
from scheduler.core.model.lifecycle import State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Running, Snapshot, Stage
from scheduler.core.resources import speed
from scheduler.core.resources.elastic import faster
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option, grants_of
from scheduler.core.world.shares import Shares

OVERRUN = 1.25
# What runs is never predicted to be done sooner than this.
SOON_S = 1e-3


class Forecast(Shares):
    """The state with predictions. Run times are in seconds, ends in seconds since the epoch."""

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        super()._begin(snapshot, profiles)
        # By kind of stage, precision, sort of device and partition.
        self._speeds: dict[tuple[str, str, int, str], float] = {}

    def length_s(self, stage: Stage, feasible: FeasibleSet, quantile: str, size: int = 0) -> float:
        """Return how long the stage is predicted to run in this feasible set, at most its time limit.

        ``size`` is the number of nodes of an elastic stage; by default its minimum.
        """
        base = stage.estimate.p50_s if quantile == "p50" else stage.estimate.p90_s
        length = max(base / (feasible.speed / feasible.best if stage.estimate.declared else feasible.speed), 1.0)
        length = length / faster(stage.nodes, size, stage.scaling) if size > stage.nodes else length
        return min(length, stage.time_limit_s) if stage.time_limit_s else length

    def worst_s(self, stage: Stage, feasible: FeasibleSet) -> float:
        """Return the run time that nine of ten such stages stay below, or the time limit."""
        return self.length_s(stage, feasible, "p90")

    def _least_s(self, stage: Stage) -> float:
        """Return the run time in the fastest feasible set of its request class."""
        fastest = self.request_class(stage).fastest
        return self.length_s(stage, fastest, self.profile(stage.pool).plan_with) if fastest else 0.0

    def may_meet(self, stage: Stage, option: Option) -> bool:
        """Return whether the stage, if it started so, could still run when its nodes are kept by the calendar."""
        if not self.closed:
            return False
        until = option.start_at + self.worst_s(stage, option.feasible)
        return self.closing(option.placement.nodes, option.start_at, until, stage.reservation) is not None

    def predicted_end(self, stage: Running, quantile: str, rate: float | None = None) -> float:
        """Return when a running stage will probably end, always after now.

        The prediction is the quantile, corrected by measured progress. Once it has passed, the predicted run time is
        extended by a quarter as often as needed, so that it does not change with every cycle. The time limit is the
        upper bound. ``rate`` is the relative speed, if it is known already.
        """
        if stage.state is State.STOPPING and not stage.keeps:
            return self._stopped_at(stage)
        elapsed = max(self.now - stage.started_at, 0.0)
        rate = self._rate(stage) if rate is None else rate
        total = (stage.estimate.p50_s if quantile == "p50" else stage.estimate.p90_s) / rate
        if stage.progress and stage.progress_at is not None:
            measured = max(stage.progress_at - stage.started_at, 1.0) / min(stage.progress, 1.0)
            total = measured if quantile == "p50" else max(measured, total)
        elif total <= elapsed:
            total = max(stage.estimate.p90_s / rate, 1.0)
        while total <= elapsed:
            total *= OVERRUN
        if stage.time_limit_s is not None:
            total = min(total, stage.time_limit_s)
            if total <= elapsed:
                return self.now + stage.grace_s
        return max(stage.started_at + total, self.now + SOON_S)

    def _foreseen(self, stage: Running) -> tuple[float, float]:
        """Return when it will probably end, and when at worst."""
        quantile = self.profile(stage.pool).plan_with
        rate = self._rate(stage)
        end = self.predicted_end(stage, quantile, rate)
        return end, end if quantile == "p90" else max(end, self.predicted_end(stage, "p90", rate))

    def _drifts(self, stage: Running) -> bool:
        """Return whether its predicted end changes with time."""
        ran_out = stage.time_limit_s is not None and self.now - stage.started_at >= stage.time_limit_s
        return stage.state is State.STOPPING or ran_out

    def _stopped_at(self, stage: Running) -> float:
        """Return when a stage that was told to stop will have stopped."""
        return max(stage.stop_by_at or self.now + stage.grace_s, self.now + 1.0)

    def _rate(self, stage: Running) -> float:
        row, sort, kinds = self.fleet.row, self.fleet.sort, self.fleet.kinds
        held = [one for one in grants_of(stage) if one.device in row and is_device(kinds[one.device])]
        special = [one for one in held if is_accelerator(kinds[one.device])] or held
        sorts = {(sort[row[one.device]], one.part.profile if one.part else "") for one in special}
        return min((self._speed(stage.kind, stage.precision, *one) for one in sorts), default=1.0)

    def _speed(self, kind: str, precision: str, sort: int, partition: str) -> float:
        """Return the relative speed of such stages on a class of devices, or on a partition of one."""
        key = (kind, precision, sort, partition)
        known = self._speeds.get(key)
        if known is None:
            device = self.fleet.devices[self.fleet.sort.index(sort)]
            known = self._speeds[key] = speed.speed(kind, precision, device, self.snapshot.speeds, partition)
        return known
