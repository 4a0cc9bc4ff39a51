"""Time sharing: running and waiting stages of a pool are ordered together, and the first of them hold the devices.

The whole order is walked once. A running stage stays where it is unless a stage before it took its devices. A waiting
stage takes what is free; if that is not enough it displaces the last stages of the order; if that does not help, the
stages before it are packed closer. A stage that fits nowhere is skipped. A displaced stage may be placed elsewhere at
its own position.

Where stages take time to stop, those for which others are stopping come before the order: they start on what was freed
for them, which is kept from others, or wait for the rest without displacing more.

The classical schedulers of this kind (Tiresias, NSDI 2019; Gavel, OSDI 2020; Muri, SIGCOMM 2022) treat moves as free.
Here, if the profile has a preemption policy, a move must gain more than it costs, and policies may protect running
stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from scheduler.core.explain import why
from scheduler.core.matching.gate import admitted, gate
from scheduler.core.model.clauses import clause, say
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import (
    Estimate,
    Grant,
    Move,
    Placement,
    Preempt,
    Reason,
    Running,
    Stage,
    Start,
    Stop,
    Wait,
)
from scheduler.core.resources import speed
from scheduler.core.resources.match import grant
from scheduler.core.world import price, service
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.view import Option, View, WaitOutcome, grants_of

Finds = Callable[[View, WaitOutcome, FeasibleSet, float], Option | None]

MOVABLE = (State.STARTING, State.RUNNING, State.SUSPENDED)


def turn(view: View, now_slot: Finds) -> list[Rotation]:
    """Plan one round for every pool with time sharing, after the other pools were decided. ``now_slot`` finds a
    place on what is free."""
    turns = [Rotation(view, pool, now_slot) for pool in sorted(view.pools) if view.takes_turns(pool)]
    for one in turns:
        one.run()
    return turns


@dataclass(slots=True)
class Seat:
    """Where a stage runs in this round: in its present place (``option`` is ``None``) or in a new one."""

    stage: Stage
    running: Running | None
    option: Option | None = None


@dataclass(slots=True)
class Displacement:
    """One way to make room: the new place, the stages that must stop, and the stages that move with their new
    places."""

    option: Option
    leave: list[Running]
    move: list[tuple[Seat, Option]] = field(default_factory=list)


class Rotation:
    """One pass over the order of one pool. Meanwhile the ledger shows what is free minus what was taken so far."""

    def __init__(self, view: View, pool: str, now_slot: Finds) -> None:
        self.view, self.pool, self.profile, self._now_slot = view, pool, view.profile(pool), now_slot
        self.starts: list[Start] = []
        self.swaps: list[Start] = []
        self.preempts: list[Preempt] = []
        self.moves: list[Move] = []
        self._seats: dict[str, Seat] = {}
        self._gone: dict[str, Stage] = {}
        self._prices: dict[str, tuple[float, float]] = {}
        self._outcomes: dict[str, WaitOutcome] = {}
        stops: list[Stop] = [*view.preempts, *view.resizes, *view.moves]
        told = {one.victim for one in stops}
        mine = [one for one in view.running.values() if one.pool == pool and one.id not in told]
        self._movable = {one.id: one for one in mine if self._may_move(one)}
        self._asked = {one.id: service.as_waiting(one) for one in self._movable.values()}
        self._line: list[Stage] = []
        self._awaiting: set[str] = set()
        # Those that run and have not had their turn, in the order of the queue; and by the feasible set they stand in.
        self._lower: dict[str, Running] = {}
        self._in: dict[int, list[Running]] = {}
        self._widths = {one.id: price.width(one) for one in self._movable.values()}

    def run(self) -> None:
        """Walk the order and note starts, moves and preemptions."""
        stages = [one for one in self.view.waiting.values() if one.pool == self.pool]
        stages = [one for one in stages if self._open(one)]
        self._line = self._ordered([*stages, *self._asked.values()])
        rank = {stage.id: i for i, stage in enumerate(self._line)}
        self._lower = {one.id: one for one in sorted(self._movable.values(), key=lambda one: rank[one.id])}
        mark, held = self.view.ledger.checkpoint(), self.view.held.copy()
        self._keep_promises()
        for stage, feasible_sets in self._pairs():
            if stage.id not in self._seats and stage.id not in self._awaiting:
                self._seat(stage, feasible_sets)
        self.view.ledger.rollback(mark)
        self.view.held = held
        self._note()

    def _keep_promises(self) -> None:
        """Seat the stages for which others were stopped, as far as these are gone, and keep the rest of their
        devices for them."""
        view = self.view
        for stage in self._line if view.owners else ():
            if stage.id not in view.owners or stage.id in self._movable:
                continue
            outcome = self._outcomes[stage.id]
            assert outcome.request is not None, "it was set when the stage was looked at"
            found = (self._now(stage, feasible) for feasible in admitted(view, outcome, outcome.request))
            change = next((one for one in found if one is not None), None)
            if change is not None:
                self._make(stage, None, change)
            elif stage.id in view.evicting:
                outcome.reasons.append(why.preempting(view, view.evicting[stage.id]))
                self._awaiting.add(stage.id)
        view.close_fences()

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _may_move(self, one: Running) -> bool:
        rounds = self.profile.rotates
        if isinstance(rounds, (int, float)) and one.started_at >= math.floor(self.view.now / rounds) * rounds:
            return False
        return (
            one.preemptible
            and one.state in MOVABLE
            and one.evicted_for is None
            and self.view.now - one.started_at >= one.min_runtime_s
            and not any(policy.protects(one, self.view) for policy in self.profile.protects)
        )

    def _open(self, stage: Stage) -> bool:
        """Return whether the stage may start now at all; if not, note why."""
        outcome = self._outcomes[stage.id] = WaitOutcome(stage)
        earliest = gate(self.view, outcome)
        outcome.request = request = self.view.request_class(stage)
        if request.impossible:
            outcome.reasons.append(request.impossible)
            return False
        return earliest is not None and earliest <= self.view.now

    def _ordered(self, stages: list[Stage]) -> list[Stage]:
        ranks = {}
        for stage in stages:
            score = sum(weight * policy.rank(stage, self.view) for policy, weight in self.profile.ranks)
            ranks[stage.id] = (-round(score, 6), stage.submitted_at, stage.number, stage.id)
        return sorted(stages, key=lambda stage: ranks[stage.id])

    def _pairs(self) -> Iterator[tuple[Stage, list[FeasibleSet] | None]]:
        """Return the order as pairs of a stage and the feasible sets to try at that point; ``None`` means all.

        If the profile has an allotting policy, the pairs of highest priority come first, then the whole order, so that
        nothing usable stays free.
        """
        for policy in self.profile.allots:
            allotted = policy.allot(self._line, self.view)
            known = {stage.id: (i, stage) for i, stage in enumerate(self._line)}
            pairs = sorted(allotted, key=lambda pair: (-round(allotted[pair], 6), known[pair[0]][0], pair[1]))
            for name, index in pairs:
                if name not in self._seats:
                    stage = known[name][1]
                    yield stage, [self.view.request_class(stage).feasible_sets[index]]
        for stage in self._line:
            yield stage, None

    # -- one stage --------------------------------------------------------------------------------------------------

    def _seat(self, stage: Stage, only: list[FeasibleSet] | None) -> None:
        """Give the stage a place in one of the feasible sets, if there is one."""
        running = self._movable.get(stage.id)
        if running is not None and running.id not in self._gone:
            own = self._own(running)
            stays = only is None or own in only
            elsewhere = (
                self._better(stage, own) if only is None else [feasible for feasible in only if feasible is not own]
            )
            if not (elsewhere and self._leave_for(stage, running, elsewhere)) and stays:
                del self._lower[running.id]
                self._seats[stage.id] = Seat(stage, running)
            return
        if running is not None and not running.alternatives:
            return  # displaced, and its alternatives are unknown
        outcome = self._outcomes.setdefault(stage.id, WaitOutcome(stage, request=self.view.request_class(stage)))
        assert outcome.request is not None, "it was set when the stage was looked at"
        feasible_sets = outcome.request.feasible_sets
        if running is None:
            outcome.reasons.clear()
            feasible_sets = admitted(self.view, outcome, outcome.request)
        if only is not None:
            feasible_sets = [feasible for feasible in feasible_sets if feasible in only]
        if feasible_sets and (change := self._best(stage, feasible_sets)):
            self._make(stage, running, change)
        elif only is None:
            self.view.ahead[self.pool] = self.view.ahead.get(self.pool, 0) + 1

    def _own(self, running: Running) -> FeasibleSet | None:
        """Return the feasible set of the alternative that a running stage runs."""
        row = self.view.fleet.node_row.get(running.placement.nodes[0])
        if row is None or not running.alternatives:
            return None
        for feasible in self.view.request_class(self._asked[running.id]).feasible_sets:
            if feasible.alternative.index == running.placement.alternative and feasible.line_of(row) is not None:
                return feasible
        return None

    def _better(self, stage: Stage, own: FeasibleSet | None) -> list[FeasibleSet]:
        """Return the feasible sets in which a running stage would be faster, if the profile chooses among
        alternatives."""
        if own is None or not self.profile.chooses:
            return []
        return sorted(
            (feasible for feasible in self.view.request_class(stage).feasible_sets if feasible.speed > own.speed),
            key=lambda feasible: -feasible.speed,
        )

    def _leave_for(self, stage: Stage, running: Running, feasible_sets: list[FeasibleSet]) -> bool:
        """Move a running stage to one of ``feasible_sets``. Return whether there was room and the move was worth it."""
        feasible_sets = [feasible for feasible in feasible_sets if self._is_enough(stage, feasible)]
        if not feasible_sets:
            return False
        ledger = self.view.ledger
        mark = ledger.checkpoint()
        ledger.release(grants_of(running))
        for feasible in feasible_sets:
            behind = self._behind(feasible)
            behind = behind[behind.index(running) + 1 :] if running in behind else behind
            change = self._now(stage, feasible) or self._displace(stage, feasible, behind)
            if change is not None and self._is_worth(stage, [running, *change.leave], change.option):
                del self._lower[running.id]
                self._gone[running.id] = stage
                self._count(running.project, grants_of(running), -1)
                self._make(stage, running, change)
                return True
        ledger.rollback(mark)
        return False

    def _best(self, stage: Stage, feasible_sets: list[FeasibleSet]) -> Displacement | None:
        """Return the best way to seat a stage that holds nothing."""
        changes = []
        for feasible in feasible_sets:
            change = self._now(stage, feasible)
            if change is None and self._is_enough(stage, feasible):
                change = self._displace(stage, feasible, self._behind(feasible)) or self._pack(stage, feasible)
            if change is not None and self._is_worth(stage, self._stopped(change), change.option):
                changes.append(change)
        if len(changes) > 1:
            for policy in self.profile.chooses:
                option = policy.choose(stage, [change.option for change in changes], self.view)
                return next(change for change in changes if change.option is option)
        return changes[0] if changes else None

    def _now(self, stage: Stage, feasible: FeasibleSet) -> Displacement | None:
        """Return a place on what is free."""
        feasible.forget()
        length = self.view.length_s(stage, feasible, self.profile.plan_with)
        option = self._now_slot(self.view, WaitOutcome(stage, request=self.view.request_class(stage)), feasible, length)
        return Displacement(option, []) if option else None

    def _behind(self, feasible: FeasibleSet) -> list[Running]:
        """Return the stages on the nodes of a feasible set that come later in the order."""
        known = self._in.get(id(feasible))
        if known is None:
            row = self.view.fleet.node_row
            known = self._in[id(feasible)] = [
                one
                for one in self._lower.values()
                if any(feasible.line_of(row[node]) is not None for node in one.placement.nodes if node in row)
            ]
        known = self._in[id(feasible)] = [one for one in known if one.id in self._lower]
        return known

    def _displace(self, stage: Stage, feasible: FeasibleSet, lower: list[Running]) -> Displacement | None:
        """Return room made by stopping or moving as few stages from the end of the order as possible, the last
        first."""
        ledger, mark = self.view.ledger, self.view.ledger.checkpoint()
        released: list[Running] = []
        found = None
        for one in reversed(lower):
            ledger.release(grants_of(one))
            released.append(one)
            found = self._now(stage, feasible)
            if found is not None:
                break
        if found is not None:
            ledger.claim(found.option.grants)
            for one in reversed(released):
                if ledger.has(grants_of(one)):
                    ledger.claim(grants_of(one))
                else:
                    found.leave.append(one)
        ledger.rollback(mark)
        return found

    def _pack(self, stage: Stage, feasible: FeasibleSet) -> Displacement | None:
        """Return room made by placing all stages before it anew, in order; those that keep their nodes keep their
        devices."""
        ledger, mark = self.view.ledger, self.view.ledger.checkpoint()
        seats = [seat for seat in self._seats.values() if seat.running is None or seat.running.alternatives]
        try:
            for one in self._lower.values():
                ledger.release(grants_of(one))
            for seat in seats:
                ledger.release(self._held(seat))
            if not seats:
                return None
            released = ledger.checkpoint()
            nodes: list[tuple[Seat, Option]] = []
            for seat in seats:
                own = self._feasible(seat)
                found = self._now(seat.stage, own) if own is not None else None
                if found is None:
                    return None
                ledger.claim(found.option.grants)
                nodes.append((seat, found.option))
            last = self._now(stage, feasible)
            if last is None:
                return None
            ledger.rollback(released)
            stay = [seat for seat, option in nodes if sorted(self._nodes(seat)) == sorted(option.placement.nodes)]
            for seat in stay:
                ledger.occupy(self._held(seat))  # as it does in fact, though a device of it may be gone
            move = []
            for seat, option in [(seat, option) for seat, option in nodes if seat not in stay]:
                placed = self._on(seat.stage, option)
                if placed is None:
                    return None
                ledger.claim(placed.grants)
                move.append((seat, placed))
            placed = self._on(stage, last.option)
            if placed is None:
                return None
            ledger.claim(placed.grants)
            leave = []
            for one in self._lower.values():
                if ledger.has(grants_of(one)):
                    ledger.claim(grants_of(one))
                else:
                    leave.append(one)
            return Displacement(placed, leave, move)
        finally:
            ledger.rollback(mark)

    def _is_enough(self, stage: Stage, feasible: FeasibleSet) -> bool:
        """Return whether free devices plus those of later stages would do if they were on the right nodes."""
        at = speed.deciding(feasible.alternative.asks)
        ask = feasible.alternative.asks[at]
        free = int(np.maximum(self.view.ledger.milli[feasible.rows[at]], 0).sum())
        held = sum(self._widths[one.id] for one in self._behind(feasible))
        return free + 1000 * held >= ask.count * ask.milli * stage.nodes

    def _on(self, stage: Stage, option: Option) -> Option | None:
        """Return the same option with devices that are free now on the same nodes."""
        ranks: list[tuple[Grant, ...]] = []
        for node in option.placement.nodes:
            line = option.feasible.line_of(self.view.fleet.node_row[node])
            assert line is not None, "an option stands on the places of its way"
            grants = grant(option.feasible.alternative.asks, option.feasible.places[line], self.view.ledger)
            if grants is None:
                return None
            ranks.append(grants)
        placement = Placement(option.placement.alternative, option.placement.nodes, tuple(ranks))
        return Option(option.feasible, option.start_at, option.end_at, placement, option.among)

    def _feasible(self, seat: Seat) -> FeasibleSet | None:
        """Return the feasible set that it runs in, or the first in which it could; ``None`` if there is none any
        more."""
        if seat.option is not None:
            return seat.option.feasible
        assert seat.running is not None, "a seat is old or new"
        own = self._own(seat.running)
        return own if own is not None else next(iter(self.view.request_class(seat.stage).feasible_sets), None)

    def _held(self, seat: Seat) -> tuple[Grant, ...]:
        if seat.option is not None:
            return seat.option.grants
        assert seat.running is not None, "a seat is old or new"
        return grants_of(seat.running)

    def _nodes(self, seat: Seat) -> tuple[str, ...]:
        if seat.option is not None:
            return seat.option.placement.nodes
        assert seat.running is not None, "a seat is old or new"
        return seat.running.placement.nodes

    # -- what it costs ----------------------------------------------------------------------------------------------

    def _stopped(self, change: Displacement) -> list[Running]:
        return [*change.leave, *(seat.running for seat, _ in change.move if seat.running and seat.option is None)]

    def _is_worth(self, stage: Stage, stopped: list[Running], option: Option) -> bool:
        """Return whether stopping these stages gains more than it costs; always true without a preemption policy."""
        if not stopped or not self.profile.evicts:
            return True
        view = self.view
        factor = self.profile.evicts[0].factor
        cost = sum(price.price(one, view.now) for one in stopped)
        wait_s = min(max(view.finish.get(one.id, view.now) for one in stopped) - view.now, self.profile.horizon_s)
        devices = price.breadth(option.feasible.alternative, stage.nodes)
        gain = price.gain(stage.priority, devices, wait_s, max(one.grace_s for one in stopped))
        if gain < factor * cost:
            return False
        self._prices.update((one.id, (price.price(one, view.now), gain)) for one in stopped)
        return True

    # -- what follows -----------------------------------------------------------------------------------------------

    def _make(self, stage: Stage, running: Running | None, change: Displacement) -> None:
        """Take the place and apply what follows for the displaced stages."""
        ledger = self.view.ledger
        for seat, _ in change.move:
            ledger.release(self._held(seat))
        for one in change.leave:
            ledger.release(grants_of(one))
            self._count(one.project, grants_of(one), -1)
            del self._lower[one.id]
            self._gone[one.id] = stage
        for seat, option in change.move:
            if seat.running is not None and seat.option is None:
                self._gone[seat.running.id] = stage
            ledger.claim(option.grants)
            seat.option = option
        ledger.claim(change.option.grants)
        self._count(stage.project, change.option.grants, 1)
        self._seats[stage.id] = Seat(stage, running, change.option)

    def _count(self, project: str, grants: tuple[Grant, ...], sign: int) -> None:
        """Update what projects hold, which admission policies read during the walk."""
        self.view.held.count(project, grants, self.view.ledger.devices, sign)

    def _note(self) -> None:
        """Turn the seats into starts, swaps, preemptions and moves."""
        for stage in self._line:
            seat = self._seats.get(stage.id)
            if seat is None or seat.option is None:
                continue
            start = self._start(seat.stage, seat.option)
            if seat.running is None and self.view.ledger.has(seat.option.grants):
                self.starts.append(start)
                self.view.start(stage, seat.option)
            else:
                self.swaps.append(start)
        placed = {one.stage: one.placement for one in self.swaps}
        places = {name: {grant.device for rank in one.grants for grant in rank} for name, one in placed.items()}
        for name, stage in sorted(self._gone.items()):
            victim = self._movable[name]
            held = {one.device for one in grants_of(victim)}
            cost, gain = (round(one, 6) for one in self._prices.get(name, (0.0, 0.0)))
            if stage.id == name:
                said = (clause("TurnElsewhere"),)
                self.moves.append(Move(name, placed[name], say(said), cost, gain, said))
                continue
            fenced = sorted(held & places.get(stage.id, set()))
            accelerators = [one for one in fenced if is_accelerator(self.view.ledger.devices[one].kind)]
            self.preempts.append(Preempt(name, stage.id, cost, gain, tuple(accelerators)))

    def _start(self, stage: Stage, option: Option) -> Start:
        view = self.view
        lasts = Estimate(
            view.length_s(stage, option.feasible, "p50"),
            view.length_s(stage, option.feasible, "p90"),
            stage.estimate.basis,
            runs=stage.estimate.runs,
        )
        names = ", ".join(view.nodes[node].name for node in option.placement.nodes)
        said = (clause("TurnHere", nodes=names),)
        return Start(stage.id, option.placement, say(said), lasts, said)

    def waits(self) -> list[Wait]:
        """Return the stages that do not start now, each with its reasons."""
        started = {one.stage for one in self.starts}
        victims: dict[str, list[Running]] = {}
        for one in self.preempts:
            victims.setdefault(one.stage, []).append(self._movable[one.victim])
        rank = {stage.id: i for i, stage in enumerate(self._line)}
        found = []
        for stage in sorted(self.view.waiting.values(), key=lambda one: (rank.get(one.id, len(rank)), one.id)):
            if stage.pool != self.pool or stage.id in started:
                continue
            reasons = list(self._outcomes[stage.id].reasons)
            if stage.id in victims:
                reasons.append(why.preempting(self.view, victims[stage.id]))
            if stage.id in rank and (rank[stage.id] or not reasons):
                ahead = {"ahead": rank[stage.id]}
                reasons.append(Reason("PriorityBehind", ahead) if ahead["ahead"] else Reason("PendingEvaluation"))
            request = self._outcomes[stage.id].request
            found.append(Wait(stage.id, tuple(reasons), funnel=request.funnel if request else ()))
        return found

    def wake_at(self) -> float | None:
        """Return when to plan again if nothing happens: at the end of a round, of a wait, or when the order changes."""
        now, times = self.view.now, []
        if isinstance(self.profile.rotates, (int, float)) and self._line:
            times.append((math.floor(now / self.profile.rotates) + 1) * self.profile.rotates)
        for stage in self._line:
            seat = self._seats.get(stage.id)
            if seat is not None:
                times += [at for policy in self.profile.turns if (at := policy.turns_at(stage, self.view)) is not None]
        for stage in self.view.waiting.values():
            times += [at for at in (stage.begin_at, stage.retry_at) if at is not None]
        unsafe_at = self.view.victim_index.next_unsafe(now) if self.view.waiting else None
        if unsafe_at is not None:
            times.append(unsafe_at)
        return min((at for at in times if at > now), default=None)
