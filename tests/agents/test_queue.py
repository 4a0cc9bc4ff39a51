"""The feedback queue: one at a time, short work first, nobody starves."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agents.resources.feedback_queue import FeedbackQueue, QueueRequest, QueueRules, turn

RULES = QueueRules(quanta_s=(1.0, 2.0, 4.0), boost_s=10.0)
STEP_S = 0.25


@dataclass
class Device:
    """A device on which the queue's decisions take effect at once. ``needs`` is the work of each part, in seconds."""

    needs: dict[str, float]
    arrives: dict[str, float] = field(default_factory=dict)
    queue: FeedbackQueue = field(default_factory=lambda: FeedbackQueue(rules=RULES))
    used: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    history: list[str | None] = field(default_factory=list)
    now: float = 0.0

    def step(self) -> None:
        present = {
            part: self.used.get(part, 0.0)
            for part in self.needs
            if part not in self.ended and self.arrives.get(part, 0.0) <= self.now
        }
        self.queue = turn(self.queue, self.now, present)
        self.now += STEP_S
        self.history.append(self.queue.running)
        if (part := self.queue.running) is not None:
            self.used[part] = self.used.get(part, 0.0) + STEP_S
            if self.used[part] >= self.needs[part]:
                self.ended[part] = self.now

    def run(self, seconds: float) -> None:
        while self.now < seconds:
            self.step()


works = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.sampled_from([0.25, 0.5, 1.0, 3.0, 9.0, 1e9]), st.sampled_from([0.0, 1.0, 5.5, 12.0])),
    min_size=1,
)


def device(work: dict[str, tuple[float, float]]) -> Device:
    return Device({part: need for part, (need, _) in work.items()}, {part: at for part, (_, at) in work.items()})


@given(works)
def test_exactly_one_runs_while_anybody_is_there(work: dict[str, tuple[float, float]]) -> None:
    made = device(work)
    for _ in range(200):
        made.step()
        parts = {item.part for item in made.queue.items}
        assert (made.queue.running in parts) == bool(parts)
        assert made.queue.paused == parts - {made.queue.running}


@given(works)
def test_nobody_waits_longer_than_the_boost_and_a_turn_of_each(work: dict[str, tuple[float, float]]) -> None:
    made = device(work)
    bound = RULES.boost_s + len(work) * RULES.quanta_s[0] + max(RULES.quanta_s) + STEP_S
    waited: dict[str, float] = {}
    for _ in range(400):
        made.step()
        for item in made.queue.items:
            waited[item.part] = 0.0 if item.part == made.queue.running else waited.get(item.part, 0.0) + STEP_S
            assert waited[item.part] <= bound


@given(works)
def test_no_work_is_lost_and_all_of_it_ends(work: dict[str, tuple[float, float]]) -> None:
    """The device is never idle while somebody is there: all ends when the sum of the work is done."""
    finite = {part: (min(need, 9.0), at) for part, (need, at) in work.items()}
    made = device(finite)
    made.run(13.0 + sum(need for need, _ in finite.values()))
    assert set(made.ended) == set(finite)


def test_short_work_that_comes_is_done_before_long_work_goes_on() -> None:
    made = Device({"long": 1e9, "short": 1.0}, {"short": 5.0})
    made.run(5.0)
    assert made.queue.running == "long"
    made.run(5.0 + 1.0)
    assert made.ended["short"] == 6.0


def test_who_uses_up_its_quantum_goes_down_one_level_at_a_time() -> None:
    made = Device({"a": 1e9, "b": 1e9})
    levels = []
    for _ in range(60):
        made.step()
        levels.append({item.part: item.level for item in made.queue.items}["a"])
    assert levels == sorted(levels)
    assert set(levels) == {0, 1, 2}


def test_equals_take_turns_on_the_last_level() -> None:
    made = Device({"a": 1e9, "b": 1e9}, queue=FeedbackQueue(rules=QueueRules((1.0, 2.0, 4.0), boost_s=1e9)))
    made.run(60.0)
    assert abs(made.used["a"] - made.used["b"]) <= 4.0


def test_one_who_waited_too_long_is_lifted_over_a_stream_of_short_work() -> None:
    """Short work without end would keep the long one down for ever."""
    needs = {"long": 1e9} | {f"short{number}": 1.0 for number in range(100)}
    arrives = {f"short{number}": 1.0 + number for number in range(100)}
    made = Device(needs, arrives)
    made.run(60.0)
    assert made.used["long"] >= 3 * RULES.quanta_s[0]


def test_asking_again_at_the_same_moment_changes_nothing() -> None:
    made = Device({"a": 3.0, "b": 3.0})
    made.run(2.0)
    used = {item.part: made.used.get(item.part, 0.0) for item in made.queue.items}
    once = turn(made.queue, made.now, used)
    assert turn(once, made.now, used) == once


def test_a_short_one_stays_on_the_top_and_a_long_one_on_the_last_level() -> None:
    queue, now, used = FeedbackQueue(rules=RULES), 0.0, {"a": 0.0, "b": 0.0}
    wishes = {"a": QueueRequest(0), "b": QueueRequest(-1)}
    levels = set()
    for _ in range(60):
        queue = turn(queue, now, used, wishes)
        now += STEP_S
        if queue.running is not None:
            used[queue.running] += STEP_S
        levels |= {(item.part, item.level) for item in queue.items}
    # Nobody starves: the long one is lifted for one quantum after it waited for the boost.
    assert levels == {("a", 0), ("b", 0), ("b", 2)}
    assert used["a"] > 3 * used["b"] > 0


def test_a_wish_takes_effect_at_once_and_taken_back_it_counts_as_new() -> None:
    queue = turn(FeedbackQueue(rules=RULES), 0.0, {"a": 0.0, "b": 0.0})
    assert queue.running == "a"
    queue = turn(queue, 0.1, {"a": 0.1, "b": 0.0}, {"a": QueueRequest(-1)})
    assert queue.running == "b"
    assert {item.part: item.level for item in queue.items} == {"a": 2, "b": 0}
    queue = turn(queue, 0.2, {"a": 0.1, "b": 0.1})
    assert {item.part: item.level for item in queue.items} == {"a": 0, "b": 0}


def test_a_wish_for_longer_turns_holds_on_every_level() -> None:
    queue, wishes = FeedbackQueue(rules=RULES), {"a": QueueRequest(quantum_s=3.0)}
    queue = turn(queue, 0.0, {"a": 0.0, "b": 0.0}, wishes)
    queue = turn(queue, 2.9, {"a": 2.9, "b": 0.0}, wishes)
    assert queue.running == "a"
    assert turn(queue, 3.0, {"a": 3.0, "b": 0.0}, wishes).running == "b"
