"""What projects will still receive: device time of running and starting stages up to their predicted ends.

A project pays for a stage when it starts, not second by second, so that a project that holds every device for an hour
is counted with that hour at once. As a stage runs, the committed time becomes used time.
"""

from __future__ import annotations


class Commitments:
    """The predicted remaining use of each project, in device-seconds weighted by worth.

    Rates are thousandths of a device of worth 1, times are milliseconds, and all sums are whole numbers, so the same
    stages give the same sums in whatever order they come and go.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, int, int]] = {}
        # By project: the sum of the rates, and of rates times predicted ends.
        self._sums: dict[str, tuple[int, int]] = {}

    def expect(self, stage: str, project: str, rate: float, end_at: float) -> None:
        """Note that ``stage`` holds devices worth ``rate`` until ``end_at``; replaces what was noted before."""
        self.forget(stage)
        self._of[stage] = (project, round(rate * 1000), round(end_at * 1000))
        self._add(*self._of[stage], 1)

    def forget(self, stage: str) -> None:
        """Note that ``stage`` holds nothing any more."""
        known = self._of.pop(stage, None)
        if known is not None:
            self._add(*known, -1)

    def of(self, project: str, now: float) -> float:
        """Return what the project will still receive."""
        rate, weighted = self._sums.get(project, (0, 0))
        return max(weighted - rate * round(now * 1000), 0) / 1e6

    def _add(self, project: str, rate: int, end: int, sign: int) -> None:
        rates, weighted = self._sums.get(project, (0, 0))
        self._sums[project] = (rates + sign * rate, weighted + sign * rate * end)
