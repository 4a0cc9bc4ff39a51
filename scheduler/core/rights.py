"""Quotas by project and by cohort, so that nobody has to look through all of them."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.types import Quota


class Rights:
    """What projects have a right to. ``of`` are the quotas of a project; ``others`` those of the other projects of the
    same cohort to the same kind of device."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self._of: dict[str, list[Quota]] = {}
        self._in: dict[tuple[str, str], list[Quota]] = {}
        self._others: dict[tuple[str, str, str], list[Quota]] = {}
        for one in quotas:
            self._of.setdefault(one.project, []).append(one)
            self._in.setdefault((one.cohort, one.kind), []).append(one)

    def of(self, project: str) -> list[Quota]:
        return self._of.get(project, [])

    def to(self, project: str, kind: str) -> Quota | None:
        """The first quota of a project to a kind of device."""
        return next((one for one in self.of(project) if one.kind == kind), None)

    def others(self, cohort: str, project: str, kind: str) -> list[Quota]:
        key = (cohort, project, kind)
        known = self._others.get(key)
        if known is None:
            members = self._in.get((cohort, kind), ())
            known = self._others[key] = [one for one in members if one.project != project]
        return known
