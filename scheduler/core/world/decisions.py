"""The decisions of a cycle on the state of the cluster (starts, reservations, preemptions, fences), and how they are
undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scheduler.core.hooks import Eviction
from scheduler.core.model.clauses import clause, say
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Grant, Move, Preempt, Promise, Reason, Resize, Running, Snapshot, Stage
from scheduler.core.resources.timetable import ALWAYS
from scheduler.core.world import lateness
from scheduler.core.world.occupancy import Occupancy
from scheduler.core.world.pending import Column
from scheduler.core.world.reservation import Option, TimetableEntry, WaitOutcome, grants_of

if TYPE_CHECKING:
    from scheduler.core.planning.time_sharing import Rotation

# A promise is a range: it ends as late as promises like it were kept by, before any were with the bad-case ends of what
# must end before, and is never narrower than this.
SLACK, LEAST_SLACK_S = 0.05, 60.0


class Decisions(Occupancy):
    """The state with the decisions of this cycle applied.

    ``stirred`` are stages with a reservation that something kept from starting at the last snapshot and not at this
    one, or the reverse.
    """

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        super()._begin(snapshot, profiles)
        self.reservations: dict[str, TimetableEntry] = {}
        # Whose entry was made, moved or taken out since the last look.
        self._rewritten: set[str] = set()
        # Whose promise on record could not be entered.
        self._astray: set[str] = set()
        # How many entries each pool has, by priority.
        self.entries: dict[str, dict[int, int]] = {}
        self._tentative: list[str] = []
        self._expected: list[tuple[str, tuple[Grant, ...], int]] = []
        # What the last cycle began, and whom it stopped.
        self._begun: dict[str, Option] = {}
        self._undone: dict[str, Running] = {}
        self._begin_cycle()

    def _begin_cycle(self) -> None:
        """Reset the decisions. Those of the last cycle were undone before."""
        self._shares = None
        self.outcomes: dict[str, WaitOutcome] = {}
        self.starts: dict[str, Option] = {}
        self.preempts: list[Preempt] = []
        self.resizes: list[Resize] = []
        self.moves: list[Move] = []
        self.wakes: list[float] = []
        self.turns: list[Rotation] = []
        self.chosen_victims: set[str] = set()
        self.ahead: dict[str, int] = {}
        self.broken: list[Stage] = []
        self.lifted: set[str] = set()
        self.unsettled: set[str] = set()
        self.evictable: dict[object, bool] = {}
        self.refusals: dict[object, list[Reason]] = {}
        # Device by device, for whom it was freed and until when it is kept.
        self.fences: dict[str, str] = {}
        self.fence_ends: dict[str, float] = {}
        # By who waits for them: those that were told to stop for it.
        self.evicting: dict[str, list[Running]] = {}
        self.owners: set[str] = set()
        # Who is served from the guaranteed part of a pool; those that wait come first in the queue.
        self.guaranteed: set[str] = set()
        # Whose promise is looked at again because another project is owed more, with that project.
        self.yielded: dict[str, str] = {}
        # Who was entered behind whom of their class.
        self.followers: dict[str, str] = {}
        # Who starts sooner if they do.
        self.owed: set[str] = set()
        # By pool: slots of the pending table, and what the project of each will have received before it.
        self.due: dict[str, tuple[Column, Column]] = {}
        # By pool: what its projects have received, and will if all that waits runs.
        self.spoken: dict[str, float] = {}

    # -- starts and entries -----------------------------------------------------------------------------------------

    def start(self, stage: Stage, option: Option) -> None:
        """Give ``stage`` its devices now."""
        if stage.id in self.reservations:
            self.free(self.unreserve(stage.id).option.grants)
        self.ledger.claim(option.grants)
        late = self.now + self.length_s(stage, option.feasible, "p90")
        self.table.take(stage.id, option.grants, ALWAYS, option.end_at, late)
        self._tentative.append(stage.id)
        self.starts[stage.id] = option
        self.finish[stage.id] = option.end_at
        self.commitments.expect(stage.id, stage.project, self.charge(option.grants), option.end_at)
        self._shares = None
        self._count(stage.project, option.grants, 1)

    def widen(self, stage: Stage, option: Option, more: tuple[Grant, ...]) -> None:
        """Give ``more`` to a stage that starts in this cycle; ``option`` is all that it gets."""
        self.ledger.claim(more)
        self.table.drop(stage.id)
        late = self.now + self.length_s(stage, option.feasible, "p90", len(option.placement.nodes))
        self.table.take(stage.id, option.grants, ALWAYS, option.end_at, late)
        self.starts[stage.id] = option
        self.finish[stage.id] = option.end_at
        self.commitments.expect(stage.id, stage.project, self.charge(option.grants), option.end_at)
        self._count(stage.project, more, 1)

    def reserve(self, stage: Stage, option: Option, promise: Promise | None = None, *, keeps: bool = False) -> None:
        """Enter ``option`` into the timetable.

        ``promise`` is the promise that it stands for; without one a new promise is made. If it ``keeps`` the promise,
        the promise is shown unchanged wherever the reservation is placed.
        """
        if promise:
            late_at = promise.late_at
        else:
            slack_s = max(LEAST_SLACK_S, SLACK * (option.start_at - self.now))
            seen_s = lateness.slack_s(self.snapshot.lateness, stage)
            if seen_s is None:
                late_at = max(self.table.late(option.grants, option.start_at, self.now), option.start_at + slack_s)
            else:
                late_at = option.start_at + max(seen_s, slack_s)
        if promise is None or not keeps:
            promise = Promise(
                stage=stage.id,
                start_at=option.start_at,
                end_at=option.end_at,
                late_at=max(late_at, option.start_at),
                placement=option.placement,
                made_at=promise.made_at if promise else self.now,
                yielded_to=promise.yielded_to if promise else self.yielded.get(stage.id, ""),
            )
        self._book(TimetableEntry(stage, promise, option))

    def _book(self, reservation: TimetableEntry) -> None:
        stage, option = reservation.stage, reservation.option
        late_end = reservation.promise.late_at + self.length_s(stage, option.feasible, "p90")
        self.table.take(stage.id, option.grants, option.start_at, option.end_at, late_end)
        self.reservations[stage.id] = reservation
        self._rewritten.add(stage.id)
        self.finish[stage.id] = option.end_at
        entries = self.entries.setdefault(stage.pool, {})
        entries[stage.priority] = entries.get(stage.priority, 0) + 1

    def _reserve_again(self, stage: Stage, promise: Promise) -> None:
        """Enter a stored promise into the timetable if that is still possible; the engine decides about the others."""
        profile = self.profile(stage.pool)
        request = self.request_class(stage)
        feasible = self.feasible_set_of(request, promise)
        if profile.timetable == "none":
            return
        if feasible is None:  # a device of it cannot be used: perhaps it can be again later
            self._astray.add(stage.id)
            self.lifted.add(stage.id)
            return
        if promise.start_at <= self.now:
            self.free(one for rank in promise.placement.grants for one in rank)
            self.lifted.add(stage.id)
            return
        end = promise.start_at + self.length_s(stage, feasible, profile.plan_with)
        self._book(TimetableEntry(stage, promise, Option(feasible, promise.start_at, end, promise.placement)))

    def _still_stands(self, reservation: TimetableEntry, new: Stage | None) -> bool:
        old = reservation.stage
        return new is not None and (new.promise, new.estimate, new.time_limit_s, new.pool, new.priority) == (
            reservation.promise,
            old.estimate,
            old.time_limit_s,
            old.pool,
            old.priority,
        )

    def unreserve(self, name: str) -> TimetableEntry:
        """Remove a reservation."""
        reservation = self.reservations.pop(name)
        self._rewritten.add(name)
        self.table.drop(name)
        self.finish.pop(name, None)
        self.entries[reservation.stage.pool][reservation.stage.priority] -= 1
        return reservation

    def _unreserve_for_now(self, name: str) -> None:
        """Remove the reservation of a stage, if it has one; a stored promise is entered again later."""
        if name in self.reservations:
            self.free(self.unreserve(name).option.grants)

    # -- evictions and fences ---------------------------------------------------------------------------------------

    def evict(self, stage: Stage, eviction: Eviction) -> None:
        """Mark the victims as stopping and fence the devices that the preemptor needs; it starts when they are gone."""
        option = eviction.option
        fenced = tuple(one.device for one in option.grants if self._is_scarce(one))
        sizes = eviction.sizes or (0,) * len(eviction.victims)
        for victim, price, size in zip(eviction.victims, eviction.prices, sizes, strict=True):
            self._note_victim(victim, size, stage, price, eviction.gain, fenced)
            self.chosen_victims.add(victim.id)
            self._expect(victim.project, grants_of(victim), -1)
            self.victim_index.leave(victim.id)
            self._vacate(victim.id)
            end = self.finish.get(victim.id, option.start_at) if size else option.start_at
            self._occupy(victim, size, option.start_at, end, end)
        self._expect(stage.project, option.grants, 1)
        self.ledger.hold(option.grants)
        self.reserve(stage, option)

    def _note_victim(
        self, victim: Running, size: int, stage: Stage, price: float, gain: float, fenced: tuple[str, ...]
    ) -> None:
        price, gain = round(price, 6), round(gain, 6)
        if size:
            said = (clause("MakesRoom", stage=f"#{stage.number} {stage.name}"),)
            self.resizes.append(
                Resize(victim.id, len(victim.placement.nodes), size, say(said), price, gain, stage.id, fenced, said)
            )
        else:
            self.preempts.append(Preempt(victim.id, stage.id, price, gain, fenced))

    def _is_scarce(self, one: Grant) -> bool:
        """Return whether a freed share must be fenced: accelerators always, CPU cores only where few are free."""
        milli, memory = self.ledger.free(one.device)
        return is_accelerator(self.ledger.devices[one.device].kind) or milli < one.milli or memory < one.memory_bytes

    def keep_for_turns(self) -> list[Grant]:
        """Claim what is free behind the fences of pools with time sharing; return the grants to release to them
        later."""
        kept = []
        for device, owner in sorted(self.fences.items()):
            if self.takes_turns(self.waiting[owner].pool):
                milli, memory = self.ledger.free(device)
                kept.append(Grant(device, max(0, milli), max(0, memory)))
                self.ledger.close(device)
        return kept

    def close_fences(self) -> None:
        """Claim what is free behind a fence. Each pool with time sharing claims it anew from what is released to it."""
        for device, owner in sorted(self.fences.items()):
            if owner in self.starts:
                continue
            milli, memory = self.ledger.free(device)
            if milli > 0 or memory > 0:
                self.ledger.close(device)
                name, until = f"fence {device}", self.fence_ends[device]
                self.table.drop(name)
                self.table.take(name, [Grant(device, milli, memory)], ALWAYS, until, until)
                self._tentative.append(name)

    def _expect(self, project: str, grants: tuple[Grant, ...], sign: int) -> None:
        """Count what projects will hold once a preemption is done, for this cycle."""
        self._count(project, grants, sign)
        self._expected.append((project, grants, sign))

    # -- the next cycle ---------------------------------------------------------------------------------------------

    def _undo(self) -> None:
        """Undo the decisions of the last cycle."""
        self.freed = set()
        self.ledger.rollback(0)
        for owner in self._tentative:
            self.table.drop(owner)
        self._tentative = []
        for project, grants, sign in self._expected:
            self._count(project, grants, -sign)
        self._expected = []
        self._begun = self.starts
        for name, option in self.starts.items():
            self._count(self.waiting[name].project, option.grants, -1)
            self.commitments.forget(name)
            self.finish.pop(name, None)
        for name in self.chosen_victims:
            self._undone[name] = stage = self.running.pop(name)
            self._leave(stage)
