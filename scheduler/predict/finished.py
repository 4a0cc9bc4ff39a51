"""What is known of a stage when it is submitted, and what is known of it once it has finished."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

_NUMBERS: Final = re.compile(r"[\d._-]+$|\d+")


@dataclass(frozen=True, slots=True)
class Asked:
    """A stage as it was asked for. ``resources`` says in some canonical text what it asked for: two stages of a family
    ask for the same."""

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
        """The runs of this stage: same project, user, name but for numbers, kind, request and declared times. A command
        is often named for its program alone: what is expected to take seconds and what is to take minutes differ."""
        limit = "" if self.limit_s is None else f"{self.limit_s:g}"
        said = "" if not self.expected_s else f"{self.expected_s:g}"
        return self.project, self.user, family(self.name), self.kind, f"{self.resources} {limit} {said}"

    @property
    def mine(self) -> tuple[str, ...]:
        """The same whatever was asked for and said."""
        return "mine", self.project, self.user, family(self.name), self.kind


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that completed: ``ran_s`` on a device of ``model`` whose relative speed was taken to be ``speed``.

    ``id`` is that of the stage; ``peak_bytes`` the most device or host memory that it was seen to hold, of
    ``asked_bytes``; ``out_of_memory`` tells that it ended for want of it.
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
        """How long it would have run on a device of speed 1."""
        return self.ran_s * self.speed


@cache
def family(name: str) -> str:
    """The name without its numbers: ``sweep-017`` and ``sweep-018`` are one family."""
    return _NUMBERS.sub("", name.lower()).strip(" -_.") or name.lower()
