"""What running stages hold and until when, entered into the ledger, the timetable and the usage of projects."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Running, Snapshot
from scheduler.core.resources.timetable import ALWAYS
from scheduler.core.world.forecast import SOON_S, Forecast
from scheduler.core.world.reservation import grants_of

# What the first ranks of a stage that gives others back are entered under, after its id.
GOES_ON = " goes on"


class Occupancy(Forecast):
    """The state with running stages. ``finish`` is the predicted end of each running or reserved stage."""

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        super()._begin(snapshot, profiles)
        self.finish: dict[str, float] = {}
        self.elastic: set[str] = set()
        self._told_to_stop: set[str] = set()
        # How many of each priority could be stopped.
        self._preemptible: dict[int, int] = {}
        # The ids of the running stages of each user.
        self.run_by: defaultdict[str, set[str]] = defaultdict(set)
        # Whose end moves with the clock, and the ends of the others as a heap.
        self._drifting: set[str] = set()
        self._ends: list[tuple[float, str]] = []

    def runs_of(self, user: str) -> set[str]:
        """Return the ids of the running stages of a user."""
        return self.run_by[user]

    @property
    def least_priority(self) -> int:
        """The lowest priority of any stage that could be stopped."""
        return min((priority for priority, count in self._preemptible.items() if count), default=2**31)

    def next_end(self) -> float | None:
        """Return the first predicted end of a running stage."""
        while self._ends and self.finish.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        ends = [self.finish[name] for name in self._drifting if name in self.finish]
        ends += [end for end, _ in self._ends[:1]]
        return min((end for end in ends if end > self.now), default=None)

    def _see_running(self, changes: Mapping[str, Running | None]) -> None:
        """Enter running stages that changed, and predict the ends of overdue ones again."""
        came = {name: stage for name, stage in sorted(changes.items()) if stage is not None}
        is_first = not self.running
        self.running.update(came)
        if is_first:
            self._enter_all(list(came.values()))
        else:
            for stage in came.values():
                self._enter(stage)
        late = set(self._drifting)
        while self._ends and self._ends[0][0] <= self.now + SOON_S:
            end, name = heapq.heappop(self._ends)
            if self.finish.get(name) == end:
                late.add(name)
        for name in sorted(late):
            if name in self.running:
                self._vacate(name)
                self._foresee(self.running[name])

    def _enter(self, stage: Running) -> None:
        grants = grants_of(stage)
        self.ledger.occupy(grants)
        self._count(stage.project, grants, 1)
        self.victim_index.enter([stage], [self._rate(stage)])
        self._note(stage)
        self._foresee(stage)

    def _enter_all(self, stages: Sequence[Running]) -> None:
        """Enter many running stages at once, into an empty state."""
        row = self.fleet.row
        holds = [tuple((row[one.device], one) for one in grants_of(stage) if one.device in row) for stage in stages]
        self.ledger.fill([one for held in holds for one in held])
        self.victim_index.enter(stages, map(self._rate, stages))
        for stage, held in zip(stages, holds, strict=True):
            self._count(stage.project, [one for _, one in held], 1)
            self._note(stage)
        foreseen = {stage.id: self._foreseen(stage) for stage in stages}
        plain = [i for i, stage in enumerate(stages) if not stage.keeps]
        names = [stages[i].id for i in plain]
        ends, lates = [foreseen[name][0] for name in names], [foreseen[name][1] for name in names]
        self.table.fill(names, [holds[i] for i in plain], ends, lates)
        for stage in stages:
            end, late = foreseen[stage.id]
            if stage.keeps:
                self._occupy(stage, stage.keeps, self._stopped_at(stage), end, late)
            self._expect_end(stage, end)

    def _note(self, stage: Running) -> None:
        """Count a running stage in its group."""
        self.run_by[stage.user].add(stage.id)
        if stage.preemptible:
            self._preemptible[stage.priority] = self._preemptible.get(stage.priority, 0) + 1
        if stage.evicted_for is not None:
            self._told_to_stop.add(stage.id)
        if stage.most_nodes > stage.least_nodes:
            self.elastic.add(stage.id)

    def _foresee(self, stage: Running) -> None:
        """Predict its end and store the prediction."""
        end, late = self._foreseen(stage)
        self._occupy(stage, stage.keeps, self._stopped_at(stage) if stage.keeps else end, end, late)
        self._expect_end(stage, end)

    def _expect_end(self, stage: Running, end: float) -> None:
        self.finish[stage.id] = end
        self.commitments.expect(stage.id, stage.project, self.charge(grants_of(stage)), end)
        if self._drifts(stage):
            self._drifting.add(stage.id)
        else:
            heapq.heappush(self._ends, (end, stage.id))

    def _occupy(self, stage: Running, keeps: int, until: float, end: float, late: float) -> None:
        """Enter what a running stage holds into the timetable ``until`` then, and its first ranks, which it
        ``keeps``, until its end."""
        ranks = stage.placement.grants
        given = tuple(one for rank in ranks[keeps:] for one in rank)
        self.table.take(stage.id, given, ALWAYS, until, late if not keeps else until)
        if keeps:
            kept = tuple(one for rank in ranks[:keeps] for one in rank)
            self.table.take(f"{stage.id}{GOES_ON}", kept, ALWAYS, end, late)

    def _vacate(self, name: str) -> None:
        """Remove what a running stage was predicted to hold from the timetable."""
        self.table.drop(name)
        self.table.drop(f"{name}{GOES_ON}")

    def _leave(self, stage: Running) -> None:
        grants = grants_of(stage)
        self.ledger.release(grants)
        self._vacate(stage.id)
        self.victim_index.leave(stage.id)
        self.commitments.forget(stage.id)
        self._count(stage.project, grants, -1)
        self.run_by[stage.user].discard(stage.id)
        if stage.preemptible:
            self._preemptible[stage.priority] -= 1
        self._told_to_stop.discard(stage.id)
        self.elastic.discard(stage.id)
        self._drifting.discard(stage.id)
        self.finish.pop(stage.id, None)
        self.free(grants)
