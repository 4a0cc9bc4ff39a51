"""Quotas indexed by project and by cohort."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.model.types import Quota


class QuotaRights:
    """What projects have a right to. ``of`` are the quotas of a project; ``others`` those of the other projects of the
    same cohort to the same."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self._of: dict[str, list[Quota]] = {}
        self._in: dict[tuple[object, ...], list[Quota]] = {}
        self._others: dict[tuple[object, ...], list[Quota]] = {}
        for one in quotas:
            self._of.setdefault(one.project, []).append(one)
            self._in.setdefault(_sort(one), []).append(one)

    def of(self, project: str) -> list[Quota]:
        return self._of.get(project, [])

    def others(self, right: Quota) -> list[Quota]:
        key = (right.project, *_sort(right))
        known = self._others.get(key)
        if known is None:
            members = self._in.get(_sort(right), ())
            known = self._others[key] = [one for one in members if one.project != right.project]
        return known


def _sort(right: Quota) -> tuple[object, ...]:
    return right.cohort, right.kind, right.model.lower(), right.normalised
