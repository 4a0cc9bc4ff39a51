"""The transition table: final is final, and a job's state follows from its stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import (
    ACTIVE,
    FINAL,
    TABLE,
    WAITING,
    IllegalTransition,
    StageEvent,
    State,
    job_state,
    next_state,
    sources,
)


def test_every_state_is_waiting_active_or_final_and_nothing_leaves_a_final_one() -> None:
    assert set(State) == WAITING | ACTIVE | FINAL
    assert len(WAITING) + len(ACTIVE) + len(FINAL) == len(State)
    assert not {state for state, _ in TABLE} & FINAL


def test_every_state_that_is_not_final_can_reach_a_final_one() -> None:
    reach = set(FINAL)
    while more := {state for (state, _), to in TABLE.items() if to in reach} - reach:
        reach |= more
    assert reach == set(State)


@given(st.sampled_from(State), st.sampled_from(StageEvent))
def test_sources_and_next_state_agree(state: State, event: StageEvent) -> None:
    if state in sources(event):
        assert next_state(state, event) == TABLE[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event} is not for a stage that is {state}"):
            next_state(state, event)


@given(st.lists(st.sampled_from(State), min_size=1, max_size=5))
def test_a_job_is_final_exactly_when_all_its_stages_are(stages: list[State]) -> None:
    assert (job_state(stages) in FINAL) == (set(stages) <= FINAL)
    assert job_state(stages) == job_state(stages[::-1])


@given(st.lists(st.sampled_from(State), min_size=1, max_size=5))
def test_a_job_is_suspended_when_something_of_it_is_paused_and_nothing_runs(stages: list[State]) -> None:
    runs = {State.STARTING, State.RUNNING} & set(stages)
    assert (job_state(stages) == State.SUSPENDED) == (State.SUSPENDED in stages and not runs)
