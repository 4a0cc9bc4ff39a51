"""How fast an attempt advances, by the newest times at which it reported its steps (``Curves.marks``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Fewer reports, or reports over less time than this, tell no speed.
LEAST_MARKS: Final = 3
LEAST_S: Final = 30.0
# A stage that has reported no step for so long, or so many times as long as usual, has no speed now.
SILENT_S: Final = 120.0
SILENT_TIMES: Final = 5

Mark = tuple[float, float]


def telling(raw: Sequence[Sequence[float]], now: float) -> Sequence[Mark]:
    """Return the marks that tell a speed: enough of them, over enough time, and the last not long before ``now``.

    A mark is a time in seconds since the epoch and a step. None of them where they tell no speed.
    """
    marks = _onward([(float(at), float(step)) for at, step in raw])
    if len(marks) < LEAST_MARKS:
        return []
    (begin, first), (end, last) = marks[0], marks[-1]
    usual_s = (end - begin) / (len(marks) - 1)
    is_telling = end - begin >= LEAST_S and last > first and now - end <= max(SILENT_S, SILENT_TIMES * usual_s)
    return marks if is_telling else []


def rate(marks: Sequence[Mark]) -> float:
    """Return the steps per second from the first mark to the last; 0 where no time lies between them."""
    (begin, first), (end, last) = marks[0], marks[-1]
    return (last - first) / (end - begin) if end > begin else 0.0


def seconds_per_step(raw: Sequence[Sequence[float]], now: float) -> float | None:
    """Return how long a step takes; None where the marks tell no speed."""
    marks = telling(raw, now)
    return 1 / rate(marks) if marks else None


def _onward(marks: Sequence[Mark]) -> Sequence[Mark]:
    """Return the marks since the steps last went back, as they do where a stage begins another round."""
    back = [i for i in range(1, len(marks)) if marks[i][1] < marks[i - 1][1]]
    return marks[back[-1] :] if back else marks
