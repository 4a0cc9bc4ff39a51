"""Removes records past their retention, in small steps, and previews that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.utils import timezone

from controlplane.accounts.models import Project
from controlplane.retention import rules
from controlplane.retention.choice import Row, choose
from controlplane.retention.kinds import KINDS, Kind
from controlplane.retention.models import Removal

log = logging.getLogger(__name__)

# How long one run removes; the next run continues.
LONGEST_S: Final = 60.0
# The most rows of one kind and project that a preview counts.
MOST_COUNTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class Went:
    """Records of one kind that are, or were, removed: numbers of rows and bytes, and the age of the oldest."""

    rows: int
    size_bytes: int
    oldest: datetime | None

    def plain(self) -> dict[str, Any]:
        """The form in which it is stored."""
        return {**asdict(self), "oldest": self.oldest.isoformat() if self.oldest else None}


@dataclass(frozen=True, slots=True)
class Due:
    """Records of one kind to remove, of a project if the kind has projects, and the rule. ``is_cut`` tells that there
    are more than were counted."""

    kind: Kind
    project: Project | None
    rule: rules.Rule
    went: Went
    is_cut: bool


def places(project: Project | None = None) -> Iterator[tuple[Kind, Project | None]]:
    """Yield each kind, with each project if it has projects; with ``project`` only that."""
    projects = [project] if project else list(Project.objects.order_by("name"))
    for kind in KINDS:
        if kind.has_projects:
            yield from ((kind, each) for each in projects)
        elif project is None:
            yield kind, None


def _chosen(kind: Kind, project: Project | None, rule: rules.Rule, now: datetime, most: int) -> list[Row]:
    """The rows that are due, oldest first, among at most so many."""
    before, excess = rule.before(now), rules.excess(kind, project, rule)
    rows = kind.rows(project)
    if not excess:
        rows = rows.filter(age__lt=before) if before else rows.none()
    return list(choose((Row(*row) for row in rows.values_list("pk", "age", "size")[:most]), before, excess))


def _summed(rows: list[Row]) -> Went:
    return Went(len(rows), sum(row.size for row in rows), rows[0].at if rows else None)


def preview(project: Project | None = None, now: datetime | None = None, most_counted: int = MOST_COUNTED) -> list[Due]:
    """Return what would be removed now, of one project or of all and the cluster; of each kind at most so many rows."""
    now = now or timezone.now()
    found = []
    for kind, whose in places(project):
        rule = rules.rule_of(kind, whose)
        rows = _chosen(kind, whose, rule, now, most_counted + 1)
        found.append(Due(kind, whose, rule, _summed(rows[:most_counted]), len(rows) > most_counted))
    return found


def sweep(now: datetime | None = None, longest_s: float = LONGEST_S) -> list[Removal]:
    """Remove what is due, step by step, until done or the time is up; return the records of it."""
    now, until = now or timezone.now(), time.monotonic() + longest_s
    went: dict[Project | None, dict[str, list[Row]]] = {}
    for kind, project in places():
        rule = rules.rule_of(kind, project)
        while time.monotonic() < until:
            rows = _step(kind, project, rule, now)
            if rows:
                went.setdefault(project, {}).setdefault(kind.name, []).extend(rows)
            if len(rows) < kind.step:
                break
    return [_noted(project, by_kind) for project, by_kind in went.items()]


def _step(kind: Kind, project: Project | None, rule: rules.Rule, now: datetime) -> list[Row]:
    """Remove the oldest due rows, at most one step; return them."""
    rows = _chosen(kind, project, rule, now, kind.step)
    if not rows:
        return []
    try:
        with transaction.atomic():
            kind.remove([row.id for row in rows])
    except DatabaseError as error:
        # Another transaction holds a lock; the next run tries again.
        log.warning("%s of %s were not removed: %s", kind.name, project or "the cluster", error)
        return []
    left = set(kind.rows(project).filter(pk__in=[row.id for row in rows]).values_list("pk", flat=True))
    return [row for row in rows if row.id not in left]


def _noted(project: Project | None, by_kind: dict[str, list[Row]]) -> Removal:
    by_name = {name: _summed(rows).plain() for name, rows in by_kind.items()}
    log.info("removed by retention of %s: %s", project or "the cluster", by_name)
    return Removal.objects.create(project=project, went=by_name)
