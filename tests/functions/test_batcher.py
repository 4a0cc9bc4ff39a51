"""The laws of batches and of the queue's states, whatever comes when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.functions import queue
from switchyard.function import Batcher

times = st.floats(0, 5, allow_nan=False)


@given(st.lists(times, max_size=40), st.integers(1, 8), st.floats(0, 2), st.lists(times, max_size=40))
def test_every_event_is_taken_once_in_order_and_in_time(
    gaps: list[float], most: int, wait_s: float, looks: list[float]
) -> None:
    batcher, now, added, taken = Batcher(most, wait_s), 0.0, 0, []
    for gap, pause in zip(gaps, [*looks, *[0.0] * len(gaps)], strict=False):
        now += gap
        batcher.add(added, now)
        added += 1
        now += pause
        is_due = batcher.due_s(now) == 0.0
        batch = batcher.take(now)
        assert len(batch) <= most
        assert bool(batch) == is_due
        taken += batch
        # Nothing that is full, or has waited its time, is left to wait.
        if not batch:
            assert added - len(taken) < most
            assert (batcher.due_s(now) or 0.0) <= wait_s + 1e-9
    while (due_s := batcher.due_s(now)) is not None:
        assert due_s <= wait_s + 1e-9
        # Rounding of floats may leave the moment a hair before it.
        now += due_s + 1e-6
        taken += batcher.take(now)
    assert taken == list(range(added))


@given(
    st.just(0) | st.integers(200, 599), st.integers(0, 9), st.integers(1, 10_000), st.integers(1, 10), st.floats(0, 1e7)
)
def test_a_call_ends_or_is_due_again_within_a_bound(
    status: int, tries: int, takes: int, most: int, age_s: float
) -> None:
    verdict = queue.after(status, tries, takes, most, age_s)
    assert tries <= verdict.tries <= tries + 1
    if verdict.state == "QUEUED":
        assert 0 < verdict.pause_s <= queue.LONGEST_PAUSE_S
        assert verdict.tries < most or status == 0
        assert status == 0 or status >= 500 or 300 <= status < 400
    assert (verdict.state == "DONE") == (200 <= status < 300)


@given(st.lists(st.sampled_from([0, 200, 400, 413, 500, 502]), min_size=1, max_size=400), st.integers(1, 10))
def test_a_handler_runs_at_most_as_often_as_it_may(answers: list[int], most: int) -> None:
    tries, runs, age_s = 0, 0, 0.0
    for takes, status in enumerate(answers, 1):
        runs += status != 0
        verdict = queue.after(status, tries, takes, most, age_s)
        tries, age_s = verdict.tries, age_s + verdict.pause_s
        if verdict.state != "QUEUED":
            break
    assert runs <= most


def test_a_call_that_nobody_takes_is_given_up_after_a_day() -> None:
    assert queue.after(0, 0, 5, 3, queue.LONGEST_WAIT_S - 1).state == "QUEUED"
    assert queue.after(0, 0, 5, 3, queue.LONGEST_WAIT_S).state == "DEAD"
