"""Exactly-once joining as a state machine: submissions, ends, kills, reboots, lost and doubled messages, restores.

The agent's side is the real one over scripted parts; the record is the wire's rules: it inserts by id, and forgets what
it is told to forget.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.protocol import Desired, LocalAnswer, LocalJob, Phase, Report, local_ids
from bench.edge.node import EdgeNode
from tests.examples_count import examples

FAST_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
QUIET_MINUTES = 200


class Record:
    """What the gateway does with offers, without a database."""

    def __init__(self) -> None:
        self.jobs: dict[str, LocalJob] = {}
        self.numbers: dict[str, int] = {}
        self.inserted: list[str] = []
        self.ended: set[str] = set()

    def exchange(self, report: Report) -> Desired:
        answers = []
        for offer in report.local:
            if offer.id not in self.numbers and offer.job is not None:
                self.jobs[offer.id], self.numbers[offer.id] = offer.job, len(self.inserted)
                self.inserted.append(offer.id)
                if offer.job.exit is not None:
                    self.ended.add(local_ids(offer.id).part)
            number = self.numbers.get(offer.id)
            answers.append(LocalAnswer(offer.id, number, wants=number is None))
        known = {local_ids(job).part for job in self.jobs}
        here = {item.part: item for item in report.here if item.part in known}
        self.ended |= {part for part, item in here.items() if item.phase >= Phase.ENDED}
        forget = [part for part in here if part in self.ended and here[part].phase >= Phase.ENDED]
        return Desired(1, lineage="l", answers_seq=report.seq, local=answers, forget=forget)

    def restore(self, kept: int) -> None:
        """Become what it was when it had so few jobs."""
        for job in self.inserted[kept:]:
            del self.jobs[job], self.numbers[job]
            self.ended.discard(local_ids(job).part)
        del self.inserted[kept:]


class LocalJobsMachine(RuleBasedStateMachine):
    """One node and its record."""

    @initialize(seed=st.integers(0, 2**32), killed=st.sampled_from([0.0, 0.05, 0.3]))
    def begin(self, seed: int, killed: float) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="yard-edge-", dir=FAST_DISK)
        self.node = EdgeNode("n", Path(self.folder.name), random.Random(seed), killed)
        self.record, self.count = Record(), 0
        self.up: list[Report] = []
        self.down: list[Desired] = []

    @rule()
    def submit(self) -> None:
        self.count += 1
        self.node.submit(f"01980000-0000-7000-8000-{self.count:012d}")

    @rule()
    def submit_again(self) -> None:
        for job in list(self.node.asked)[-2:]:
            self.node.submit(job)

    @rule(minutes=st.integers(1, 60))
    def let_time_pass(self, minutes: int) -> None:
        self.node.step(60.0 * minutes)

    @rule()
    def kill(self) -> None:
        self.node.kill()

    @rule()
    def reboot(self) -> None:
        self.node.reboot()

    @rule()
    def send_up(self) -> None:
        self.up.append(self.node.report())

    @precondition(lambda self: self.up)
    @rule(index=st.integers(0, 100), is_kept=st.booleans())
    def arrive(self, index: int, is_kept: bool) -> None:
        """A report arrives, in any order; it may arrive again."""
        at = index % len(self.up)
        report = self.up[at] if is_kept else self.up.pop(at)
        self.down.append(self.record.exchange(report))

    @precondition(lambda self: self.down)
    @rule(index=st.integers(0, 100), is_kept=st.booleans())
    def answer(self, index: int, is_kept: bool) -> None:
        at = index % len(self.down)
        self.node.take(self.down[at] if is_kept else self.down.pop(at))

    @rule()
    def talk(self) -> None:
        """For a while the link is good."""
        for _ in range(4):
            self.node.step(1_800.0)
            self.node.take(self.record.exchange(self.node.report()))

    @rule(kept=st.integers(0, 5))
    def restore(self, kept: int) -> None:
        """The database is restored: what is on its way is lost, and the connection breaks."""
        self.record.restore(kept)
        self.up.clear()
        self.down.clear()
        self.node.is_first = True

    @invariant()
    def nothing_ran_twice(self) -> None:
        if hasattr(self, "node"):
            assert self.node.doubled == 0
            assert len(self.record.inserted) == len({*self.record.inserted})

    def teardown(self) -> None:
        """The air clears: all that was accepted is in the record, ended, and gone from the node."""
        if not hasattr(self, "node"):
            return
        self.node.jobs.ledger.killed = self.node.killed = 0.0  # type: ignore[attr-defined]
        self.node.is_first = True
        for _ in range(QUIET_MINUTES):
            self.node.step(600.0)
            self.node.take(self.record.exchange(self.node.report()))
            if not self.node.open and self.node.accepted <= self.record.jobs.keys():
                break
        assert not self.node.open
        assert self.node.accepted <= self.record.jobs.keys(), "none is lost"
        assert {*self.record.jobs} <= {*self.node.asked}, "and none came of nothing"
        assert {local_ids(job).part for job in self.record.jobs} <= self.record.ended
        self.nothing_ran_twice()
        self.node.close()
        self.folder.cleanup()


TestLocalJobs = LocalJobsMachine.TestCase
TestLocalJobs.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
