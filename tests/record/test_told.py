"""Of many who wait each cycle tells some why: those who came, and the others in turn."""

from __future__ import annotations

import os

import pytest
from django.conf import settings

from controlplane import changes
from controlplane.jobs import service
from controlplane.pools import profiles
from controlplane.scheduling import loop, waiting_reasons
from controlplane.scheduling.recorder import Recorder
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.planning import aside, engine
from scheduler.core.planning.cycle import tell_more
from scheduler.decisions import log, replay
from tests.record.yard import Yard, stage


@pytest.fixture
def crowded(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """A yard in which four are many, and two are told why in one cycle."""
    monkeypatch.setattr(waiting_reasons, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(waiting_reasons, "WRITES_PER_CYCLE", 2)
    yard.agent("a")
    return yard


def test_everybody_is_told_in_turn_who_was_promised_something_first(crowded: Yard) -> None:
    jobs = [crowded.submit(cpus=2) for _ in range(6)]
    done = crowded.cycle()
    assert done.partial
    told = {str(stage(job).pk) for job in jobs[1:] if stage(job).reasons}
    promised = {wait.stage for wait in done.plan.waits if wait.planned}
    assert len(told) == 2
    assert told <= promised
    passes = 0
    while crowded.store.is_behind:
        tell_more(crowded.store, crowded.planner, done, clock())
        passes += 1
    assert all(stage(job).reasons for job in jobs[1:])
    assert 1 <= passes <= 4


def test_what_happened_is_told_anew_to_everybody(crowded: Yard) -> None:
    jobs = [crowded.submit(cpus=2) for _ in range(7)]
    done = crowded.cycle()
    while crowded.store.is_behind:
        tell_more(crowded.store, crowded.planner, done, clock())
    service.cancel(jobs[1], "ada")
    now = clock()
    done = crowded.cycle(now)
    assert crowded.store.is_behind, "those behind it have one less ahead"
    while crowded.store.is_behind:
        tell_more(crowded.store, crowded.planner, done, clock())
    whole = engine.plan(done.snapshot, profiles.of(done.snapshot.pools), now)
    for job in jobs[2:]:
        (wait,) = (one for one in whole.waits if one.stage == str(stage(job).pk))
        assert [one["params"] for one in stage(job).reasons] == [dict(one.params) for one in wait.reasons]
    for _ in range(4):  # each learns which promises were written after the one before
        done = crowded.cycle()
        while crowded.store.is_behind:
            tell_more(crowded.store, crowded.planner, done, clock())
    crowded.cycle()
    assert not crowded.store.is_behind, "nothing happened since"


def test_the_loop_goes_on_to_tell_until_all_are_told(crowded: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[float] = []
    monkeypatch.setattr(loop, "_store", LiveStore())
    monkeypatch.setattr(loop, "_planner", aside.TolerantPlanner())
    monkeypatch.setattr(loop.recorder, "note", lambda *_, **__: None)
    monkeypatch.setattr(
        loop, "_arm", lambda after_s, ask: armed.append(after_s) if after_s and ask is changes.explain else None
    )
    jobs = [crowded.submit(cpus=2) for _ in range(6)]
    loop.cycle()
    for _ in range(10):
        if not armed:
            break
        armed.clear()
        loop.explain()
    assert all(stage(job).reasons for job in jobs[1:])
    assert not armed


def test_a_decision_counts_those_too_who_were_told_before(crowded: Yard) -> None:
    """The row of a decision says of everybody for what he waits, though its cycle told only some; and it replays."""
    recorder = Recorder()
    recorder._pid = os.getpid()  # no thread of its own
    jobs = [crowded.submit(cpus=2) for _ in range(7)]
    done = crowded.cycle()
    recorder.note(done, 0.01, clock())
    while crowded.store.is_behind:
        recorder.note(tell_more(crowded.store, crowded.planner, done, clock()), 0.0, clock(), is_between=True)
    (first,) = recorder.flush()
    service.cancel(jobs[1], "ada")
    crowded.submit(cpus=2)
    now = clock()
    recorder.note(crowded.cycle(now), 0.01, now)
    (second,) = recorder.flush()
    assert len(first.started) == 1
    assert (second.waiting, sum(second.waits.values())) == (6, 6)
    assert second.head["stage"] == f"#{jobs[2].number}/main"
    found = log.find(settings.DECISIONS, second.pk)
    assert found is not None
    assert found.partial
    assert len(found.plan.waits) < 6
    assert replay.replay(found).same
