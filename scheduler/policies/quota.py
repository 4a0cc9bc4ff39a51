"""Quota: a project has its nominal share for sure, and may borrow what the others of its cohort leave."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.types import Alternative, Reason, Stage
from scheduler.core.types import Quota as Right
from scheduler.core.view import View


@dataclass(frozen=True)
class Quota:
    """Counts what a project holds of each kind of device against its right to them (Kueue's words)."""

    def admit(self, stage: Stage, alternative: Alternative, view: View) -> Reason | None:
        asked: dict[str, int] = {}
        for ask in alternative.asks:
            asked[ask.kind] = asked.get(ask.kind, 0) + ask.count * ask.milli * stage.nodes
        for right in view.rights.of(stage.project):
            if right.kind in asked and right.nominal_milli is not None:
                reason = self._judge(right, asked[right.kind], view)
                if reason:
                    return reason
        return None

    def _judge(self, right: Right, asked: int, view: View) -> Reason | None:
        nominal = right.nominal_milli or 0
        held = view.held.get((right.project, right.kind), 0)
        lent = self._lent(right, view)
        limit = right.borrowing_limit_milli
        most = None if limit is None else nominal + limit
        if most is not None and asked > most:
            numbers = {"asked": _number(asked), "limit": _number(most)}
            return Reason("ExceedsQuotaMax", {**numbers, "kind": right.kind, "project": right.project})
        borrow = lent if limit is None else min(limit, lent)
        if held + asked <= nominal + borrow:
            return None
        left = max(0, nominal + borrow - max(held, nominal))
        numbers = {"held": _number(held), "nominal": _number(nominal), "borrow": _number(left)}
        return Reason(
            "QuotaExhausted", {**numbers, "asked": _number(asked), "kind": right.kind, "project": right.project}
        )

    def _lent(self, right: Right, view: View) -> int:
        """What the others of the cohort leave unused and lend, less what others have borrowed of it already. Who has no
        limit lends nothing, for there is no telling what it leaves, and has borrowed nothing."""
        free, held = 0, view.held
        for other in view.rights.others(right.cohort, right.project, right.kind):
            if other.nominal_milli is None:
                continue
            unused = other.nominal_milli - held.get((other.project, other.kind), 0)
            if unused > 0 and other.lending_limit_milli is not None:
                unused = min(unused, other.lending_limit_milli)
            free += unused  # where it is less than nothing, so much was borrowed
        return max(0, free)


def _number(milli: int) -> str:
    return f"{milli / 1000:.4g}"
