"""Corrects declared times by how much longer than declared earlier stages ran.

A family has one vote, however many of its stages ran: a burst is one observation. A user's declared times are corrected
by half of their error, and only after several separate families; how far a range reaches above the declared time is
learned from the whole project.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from scheduler.predict.finished import Asked

# The number of separate families before a user's declared times are corrected, and before a project's ranges are
# learned.
_OF_USER: Final = 5
_OF_PROJECT: Final = 10
# The newest are used.
_RECENT: Final = 100
_MILD: Final = 0.5
_MOST: Final = 1.5
# Nine of ten end by so many times the declared time, by default; and the bounds of what is learned.
UPPER: Final = 1.5
_LEAST_UPPER: Final = 1.25
_MOST_UPPER: Final = 4.0


@dataclass(slots=True)
class _FamilyRatio:
    """The mean logarithm of run time by declared time of the stages of one family."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class Sayings:
    """The ratios of run times to declared times, by project and by user."""

    _known: dict[tuple[str, str], OrderedDict[tuple[str, ...], _FamilyRatio]] = field(default_factory=dict)

    def learn(self, asked: Asked, ran_s: float) -> None:
        """Learn from a stage with a declared time."""
        if not asked.expected_s:
            return
        ratio = math.log(max(ran_s, 0.1) / asked.expected_s)
        for circle in ((asked.project, ""), (asked.project, asked.user)):
            voices = self._known.setdefault(circle, OrderedDict())
            voice = voices.setdefault(asked.any_request, _FamilyRatio())
            voice.total, voice.count = voice.total + ratio, voice.count + 1
            voices.move_to_end(asked.any_request)
            while len(voices) > _RECENT:
                voices.popitem(last=False)

    def factors(self, asked: Asked) -> tuple[float, float]:
        """Return the factors on a declared time for the middle and for the end of a range."""
        middle, upper = 1.0, UPPER
        own = [voice.mean for voice in self._known.get((asked.project, asked.user), {}).values()]
        if asked.user and len(own) >= _OF_USER:
            middle = min(max(math.exp(_MILD * median(own)), 1.0 / _MOST), _MOST)
        every = sorted(voice.mean for voice in self._known.get((asked.project, ""), {}).values())
        if len(every) >= _OF_PROJECT:
            place = min(math.ceil(0.9 * (len(every) + 1)) - 1, len(every) - 1)
            upper = min(max(math.exp(every[place]), _LEAST_UPPER), _MOST_UPPER)
        return middle, max(upper, middle * _LEAST_UPPER)
