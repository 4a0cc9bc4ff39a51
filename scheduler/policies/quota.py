"""Quota: a project has its nominal quota, and may borrow what others of its cohort leave unused."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.types import Quota as Right
from scheduler.core.model.types import Reason, Stage
from scheduler.core.resources.holdings import amount
from scheduler.core.resources.match import matches
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Quota(Admit):
    """Counts what a project holds of each kind and model of device against its quotas (in Kueue's terms). A quota
    without a nominal is unlimited: it refuses, lends and borrows nothing."""

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        for right in world.rights.of(stage.project):
            if right.nominal_milli is not None and (asked := asks(stage, feasible, right, world)):
                reason = self._judge(right, right.nominal_milli, asked, world)
                if reason:
                    return reason
        return None

    def _judge(self, right: Right, nominal: int, asked: int, world: ReadOnlyWorld) -> Reason | None:
        held, lent = world.held.of(right), self._lent(right, world)
        limit = right.borrowing_limit_milli
        most = None if limit is None else nominal + limit
        named = {"kind": sort(right), "project": right.project, "asked": _number(asked)}
        if most is not None and asked > most:
            return Reason("ExceedsQuotaMax", {**named, "limit": _number(most)})
        borrow = lent if limit is None else min(limit, lent)
        if held + asked <= nominal + borrow:
            return None
        left = max(0, nominal + borrow - max(held, nominal))
        numbers = {"held": _number(held), "nominal": _number(nominal), "borrow": _number(left)}
        return Reason("QuotaExhausted", {**numbers, **named})

    def _lent(self, right: Right, world: ReadOnlyWorld) -> int:
        """Return what the others of the cohort leave unused and lend, less what others have borrowed of it already."""
        free = 0
        for other in world.rights.others(right):
            if other.nominal_milli is None:
                continue
            unused = other.nominal_milli - world.held.of(other)
            if unused > 0 and other.lending_limit_milli is not None:
                unused = min(unused, other.lending_limit_milli)
            free += unused  # negative if that much was borrowed
        return max(0, free)


def asks(stage: Stage, feasible: FeasibleSet, right: Right, world: ReadOnlyWorld) -> int:
    """Return what the stage asks of the devices of a quota, in its unit; the most, if an alternative has several
    models."""
    asked = 0
    for ask in feasible.alternative.asks:
        if ask.kind != right.kind:
            continue
        share = ask.count * ask.milli
        if right.model or right.normalised:
            samples = (world.fleet.sample(code) for code in feasible.classes)
            devices = (device for node in samples for device in node.devices if matches(ask, device))
            share = max((amount(right, device, share) for device in devices), default=0)
        asked += share * stage.nodes
    return asked


def sort(right: Right) -> str:
    """Describe the devices of a quota in a few words."""
    return " ".join(word for word in (right.kind, right.model, "units" if right.normalised else "") if word)


def _number(milli: int) -> str:
    return f"{milli / 1000:.4g}"
