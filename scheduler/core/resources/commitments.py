"""What projects are going to receive: device time of what runs, and of what begins in this cycle, up to its end.

A project pays for a stage when it begins, not second by second: who holds every device for an hour has had that hour,
and the next to be served is somebody else. As a stage runs, what is committed becomes what was used.
"""

from __future__ import annotations


class Commitments:
    """By project, the predicted rest of what it holds, in device-seconds weighted by worth.

    Rates are thousandths of a device of worth 1, times are milliseconds, and all sums are whole numbers: whatever the
    order in which stages came and went, the same stages give the same sums.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, int, int]] = {}
        # By project: the sum of the rates, and of rates times predicted ends.
        self._sums: dict[str, tuple[int, int]] = {}

    def expect(self, stage: str, project: str, rate: float, end_at: float) -> None:
        """``stage`` holds devices worth ``rate`` until ``end_at``; replaces what was expected of it before."""
        self.forget(stage)
        self._of[stage] = (project, round(rate * 1000), round(end_at * 1000))
        self._add(*self._of[stage], 1)

    def forget(self, stage: str) -> None:
        """``stage`` holds nothing any more."""
        known = self._of.pop(stage, None)
        if known is not None:
            self._add(*known, -1)

    def of(self, project: str, now: float) -> float:
        """What the project will still receive by what it holds."""
        rate, weighted = self._sums.get(project, (0, 0))
        return max(weighted - rate * round(now * 1000), 0) / 1e6

    def _add(self, project: str, rate: int, end: int, sign: int) -> None:
        rates, weighted = self._sums.get(project, (0, 0))
        self._sums[project] = (rates + sign * rate, weighted + sign * rate * end)
