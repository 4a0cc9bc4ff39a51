"""Projects of equal weight take turns, and no class stops and is stopped in turns: worlds that are lived through."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.profiles import named
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import Arrival
from scheduler.sim.world import SimulatedWorld
from tests.core.worlds import node
from tests.examples_count import examples

HOUR = 3_600.0
DAY = 86_400.0


def live(
    gpus: int, arrivals: list[Arrival], profile: str = "hybrid", **more: dict[str, float]
) -> tuple[StageRecord, ...]:
    return SimulatedWorld((node("a", gpus, 64),), arrivals, named(profile), weights=more.get("weights")).run().entries


def received(entries: tuple[StageRecord, ...], project: str, until: float) -> float:
    """Device-seconds by then, of stages of one GPU."""
    mine = [one for one in entries if one.stage.project == project and one.started_at is not None]
    return sum(max(min(until, one.ended_at or until) - (one.started_at or 0.0), 0.0) for one in mine)


def gap(entries: tuple[StageRecord, ...], gpus: int, length_s: float) -> float:
    """The largest difference of what two projects received at any moment while both had work, in lengths of a job on
    all devices."""
    times = {at for one in entries for at in (one.started_at, one.ended_at) if at is not None}
    busy = min(max(one.started_at or 0.0 for one in entries if one.stage.project == name) for name in ("a", "b"))
    gaps = [abs(received(entries, "a", at) - received(entries, "b", at)) for at in times if at <= busy + length_s]
    return max(gaps) / (gpus * length_s)


def test_two_equal_projects_alternate_although_one_came_first() -> None:
    came = [Arrival(f"{who}{i:02}", at, HOUR, 1, who) for who, at in (("a", 0.0), ("b", 1.0)) for i in range(32)]
    entries = live(8, came)
    first = min(one.started_at or 0.0 for one in entries if one.stage.project == "b")
    assert first <= HOUR + 1, "as soon as what the other had begun has ended"
    assert gap(entries, 8, HOUR) <= 1.0 + 1e-6


@settings(max_examples=examples(12), deadline=None)
@given(
    st.integers(1, 8), st.integers(4, 24), st.integers(4, 24), st.floats(0.0, 2 * HOUR), st.sampled_from([600.0, HOUR])
)
def test_no_project_gets_far_ahead_of_another_of_its_weight(
    gpus: int, mine: int, theirs: int, late_s: float, length_s: float
) -> None:
    """Beyond what the first had before the second came, no more than one round of jobs and the hysteresis."""
    came = [Arrival(f"a{i:02}", 0.0, length_s, 1, "a") for i in range(mine)]
    came += [Arrival(f"b{i:02}", late_s, length_s, 1, "b") for i in range(theirs)]
    entries = live(gpus, came)
    head_start = received(entries, "a", late_s) / (gpus * length_s)
    hysteresis = 900.0 / length_s
    assert gap(entries, gpus, length_s) <= head_start + 1.0 + 2 * hysteresis + 1e-6


def test_weights_say_how_much_each_gets() -> None:
    came = [Arrival(f"{who}{i:02}", 0.0, HOUR, 1, who) for who in ("a", "b") for i in range(40)]
    entries = live(4, came, weights={"a": 3.0, "b": 1.0})
    at = 10 * HOUR
    assert 2.4 <= received(entries, "a", at) / received(entries, "b", at) <= 3.6


def test_old_work_of_a_low_class_and_new_of_a_high_do_not_stop_each_other_in_turns() -> None:
    came = [Arrival(f"low{i:02}", float(i), 10 * HOUR, 1, "a", priority=250) for i in range(120)]
    came += [Arrival(f"high{i:02}", 4 * DAY + 1800.0 * i, HOUR, 1, "b", priority=750) for i in range(100)]
    entries = live(8, came)
    stopped = sum(one.preemptions for one in entries)
    assert 100 * stopped <= 2 * (len(entries) + stopped), "two stops for each hundred starts"
    assert max(one.preemptions for one in entries) <= 1
    low = [one.ended_at for one in entries if one.stage.priority == 250]
    assert all(low), "and nobody starves"
