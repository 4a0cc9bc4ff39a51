"""The known properties of a stage at submission, and after it has finished."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

_NUMBERS: Final = re.compile(r"[\d._-]+$|\d+")


@dataclass(frozen=True, slots=True)
class Asked:
    """A stage as it was requested. ``resources`` is its request as canonical text: two stages of a family have the
    same."""

    project: str
    name: str
    kind: str
    user: str = ""
    resources: str = ""
    limit_s: float | None = None
    expected_s: float | None = None
    default_limit_s: float = 86_400.0

    @property
    def family(self) -> tuple[str, ...]:
        """Return the key of runs of this stage: same project, user, name without numbers, kind, request and declared
        times. The times are included because commands are often named for their program alone."""
        limit = "" if self.limit_s is None else f"{self.limit_s:g}"
        said = "" if not self.expected_s else f"{self.expected_s:g}"
        return self.project, self.user, family(self.name), self.kind, f"{self.resources} {limit} {said}"

    @property
    def any_request(self) -> tuple[str, ...]:
        """Return the key without request and declared times."""
        return "mine", self.project, self.user, family(self.name), self.kind


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that completed: ``ran_s`` on a device of ``model`` with the assumed relative speed ``speed``.

    ``id`` is that of the stage; ``peak_bytes`` its peak of device or host memory, of ``asked_bytes``; ``out_of_memory``
    tells that it ran out of it.
    """

    project: str
    name: str
    kind: str
    ran_s: float
    model: str = ""
    speed: float = 1.0
    ended_at: float = 0.0
    user: str = ""
    resources: str = ""
    limit_s: float | None = None
    expected_s: float | None = None
    id: str = ""
    peak_bytes: int = 0
    asked_bytes: int = 0
    out_of_memory: bool = False

    @property
    def asked(self) -> Asked:
        return Asked(self.project, self.name, self.kind, self.user, self.resources, self.limit_s, self.expected_s)

    @property
    def work_s(self) -> float:
        """Return its run time on a device of speed 1."""
        return self.ran_s * self.speed


@cache
def family(name: str) -> str:
    """Return the name without its numbers: ``sweep-017`` and ``sweep-018`` are one family."""
    return _NUMBERS.sub("", name.lower()).strip(" -_.") or name.lower()
