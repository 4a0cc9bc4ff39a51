"""Parses ``depends_on`` of a job file: the earlier jobs, arrays or elements of arrays for whose end a job waits."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.accounts.permissions import visible_jobs
from controlplane.jobs.models import Array, Dependency, Job
from controlplane.jobs.section import FieldError, Section
from controlplane.jobs.values import Unacceptable, choice, listed, shown

MOST: Final = 64
NAME: Final = re.compile(r"([0-9]{1,18})(?:_([0-9]{1,9}))?")

When = Dependency.When


@dataclass(frozen=True, slots=True)
class Earlier:
    """A job, or a whole array, that a job may depend on. ``is_whole`` tells that no element was removed."""

    name: str
    job: uuid.UUID | None = None
    array: int | None = None
    is_whole: bool = True

    def elements(self) -> dict[int, uuid.UUID]:
        """Return the jobs of an array by index."""
        found = Job.objects.filter(array=self.array).values_list("array_index", "id")
        return {index or 0: job for index, job in found}


@dataclass(frozen=True, slots=True)
class Awaited:
    """One dependency as resolved; ``on`` is None for a singleton. ``elements`` are those of the other array by index,
    for ``aftercorr``."""

    when: When
    on: Earlier | None = None
    elements: Mapping[int, uuid.UUID] = field(default_factory=dict)

    def of(self, index: int | None) -> uuid.UUID | None:
        """Return the job for which the element with this index waits; None for a whole array and a singleton."""
        if self.elements and index is not None:
            return self.elements[index]
        return self.on.job if self.on else None

    def name(self, index: int | None) -> str:
        """Return what the element with this index waits for as people name it."""
        if self.on is None:
            return ""
        return f"{self.on.name}_{index}" if self.elements else self.on.name


Finder = Callable[[str], Earlier | None]


def finder(user: User) -> Finder:
    """Return a function that finds what this user may see by its name: ``1399``, ``42`` for an array, ``42_7``."""

    @cache
    def find(name: str) -> Earlier | None:
        match = NAME.fullmatch(name)
        if match is None:
            return None
        number, jobs = int(match[1]), Job.objects.filter(visible_jobs(user))
        chosen = jobs.filter(array=number, array_index=int(match[2])) if match[2] else jobs.filter(number=number)
        if job := chosen.values_list("id", flat=True).first():
            return Earlier(name, job)
        row = None if match[2] else Array.objects.filter(visible_jobs(user), number=number).first()
        if row is None:
            return None
        return Earlier(name, array=number, is_whole=row.jobs.count() == row.count)

    return find


def depends_on(job: Section, find: Finder, indexes: Sequence[int] | None) -> list[Awaited]:
    """Read the job's dependencies; ``indexes`` are those of its elements, None if it is no array."""
    found: list[Awaited] = []
    for place, each in enumerate(job.each("depends_on", MOST)):
        at = f"/depends_on/{place}"
        part = Section(each, at, job.refusals, ("job", "when"))
        if not isinstance(each, dict):
            continue
        when = When(part.read("when", choice(*map(str, When)), str(When.AFTEROK)))
        if when == When.SINGLETON:
            if part.has("job"):
                detail = _("singleton names no job: it waits for those of the same user and name")
                part.refuse("job", detail, "exclusive")
            found.append(Awaited(when))
            continue
        if not part.has("job"):
            part.refuse("job", _("job is missing: say for which job it waits, by its number"), "missing")
            continue
        name = part.read("job", _name, "")
        on = find(name) if name else None
        if name and on is None:
            detail = _("there is no job {job}; ended jobs are removed after a while").format(job=shown(name))
            part.refuse("job", detail, "unknown_job")
        elif on is not None and not on.is_whole:
            detail = _("elements of array {job} were removed, so it is not known how they ended").format(job=name)
            part.refuse("job", detail, "unknown_job")
        elif on is not None and when == When.AFTERCORR:
            found.append(Awaited(when, on, _elements(part, on, indexes)))
        elif on is not None:
            found.append(Awaited(when, on))
    if len({(each.when, each.on and each.on.name) for each in found}) < len(found):
        job.refuse("depends_on", _("depends_on says the same twice; once is enough"), "duplicate")
    return found


def _elements(part: Section, on: Earlier, indexes: Sequence[int] | None) -> Mapping[int, uuid.UUID]:
    """Return the elements for which those with these indexes wait; refuse ``aftercorr`` where one has none."""
    if on.array is None or indexes is None:
        detail = _("aftercorr joins the elements of two arrays; a job waits for another by afterok")
        part.refuse("when", detail, "not_an_array")
        return {}
    elements = on.elements()
    missing = [str(index) for index in indexes if index not in elements]
    if missing:
        few = listed(missing[:5]) + (" …" if len(missing) > 5 else "")
        detail = _("array {job} has no elements {indexes}, for which elements of this array would wait")
        part.refuse("job", detail.format(job=on.name, indexes=few), "unknown_job")
        return {}
    return {index: elements[index] for index in indexes}


def _name(value: object) -> str:
    """Read the number of a job or array, or an array's number and the index of one of its elements."""
    word = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(word, str) or not NAME.fullmatch(word):
        raise Unacceptable(
            _("must be the number of a job such as 1399, or an element of an array such as 42_7, not {value}").format(
                value=shown(value)
            )
        )
    return word


def gone() -> FieldError:
    """Return the fault of a file whose earlier job was removed between the look and the submission."""
    return FieldError("/depends_on", _("a job on which it depends was just removed"), "unknown_job")
