"""What declared times turned out to be worth: how much longer stages ran than was said of them.

A family speaks once, however many of its stages came: a burst is one observation. What users say is corrected mildly,
by half of what it was wrong by, and only after several separate families of the same user; how far a range reaches
above what was said is learned from the whole project.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from scheduler.predict.finished import Asked

# So many separate families before what a user says is corrected, and before a project's ranges are learned.
_OF_USER: Final = 5
_OF_PROJECT: Final = 10
# The newest count.
_RECENT: Final = 100
_MILD: Final = 0.5
_MOST: Final = 1.5
# Nine of ten end by so many times what was said, where nothing is known; and the bounds of what is learned.
UPPER: Final = 1.5
_LEAST_UPPER: Final = 1.25
_MOST_UPPER: Final = 4.0


@dataclass(slots=True)
class _Voice:
    """The mean logarithm of how much longer the stages of one family ran than was said."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class Sayings:
    """How stages that ended compare with what was declared of them, by project and by user."""

    _known: dict[tuple[str, str], OrderedDict[tuple[str, ...], _Voice]] = field(default_factory=dict)

    def learn(self, asked: Asked, ran_s: float) -> None:
        """A stage of which something was said ran for so long."""
        if not asked.expected_s:
            return
        ratio = math.log(max(ran_s, 0.1) / asked.expected_s)
        for circle in ((asked.project, ""), (asked.project, asked.user)):
            voices = self._known.setdefault(circle, OrderedDict())
            voice = voices.setdefault(asked.mine, _Voice())
            voice.total, voice.count = voice.total + ratio, voice.count + 1
            voices.move_to_end(asked.mine)
            while len(voices) > _RECENT:
                voices.popitem(last=False)

    def factors(self, asked: Asked) -> tuple[float, float]:
        """By what a declared time is multiplied for the middle and for the end of a range."""
        middle, upper = 1.0, UPPER
        own = [voice.mean for voice in self._known.get((asked.project, asked.user), {}).values()]
        if asked.user and len(own) >= _OF_USER:
            middle = min(max(math.exp(_MILD * median(own)), 1.0 / _MOST), _MOST)
        every = sorted(voice.mean for voice in self._known.get((asked.project, ""), {}).values())
        if len(every) >= _OF_PROJECT:
            place = min(math.ceil(0.9 * (len(every) + 1)) - 1, len(every) - 1)
            upper = min(max(math.exp(every[place]), _LEAST_UPPER), _MOST_UPPER)
        return middle, max(upper, middle * _LEAST_UPPER)
