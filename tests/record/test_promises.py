"""The live scheduler learns from what becomes of its promises."""

from __future__ import annotations

from controlplane.scheduling.store import LiveStore, clock
from scheduler.predict.lateness import ENOUGH
from tests.record.yard import Yard, stage


def test_promises_that_came_late_make_the_next_ranges_wide(yard: Yard) -> None:
    """One node for which all queue; everybody ends an hour later than was thought when the next one was promised."""
    agent = yard.agent("a")
    jobs = [yard.submit(cpus=2, time_limit="10m") for _ in range(ENOUGH + 3)]
    now = clock() - 3_600.0 * (ENOUGH + 3)
    yard.cycle(now)
    assert not yard.store.load(now).lateness
    for job in jobs[: ENOUGH + 1]:
        agent.start()
        agent.end(stage(job))
        now += 3_600.0
        yard.cycle(now)
    seen = yard.store.load(now + 60.0).lateness
    assert seen["default", ""] > 3_000
    assert LiveStore().load(now + 60.0).lateness == seen, "a new process knows what the one before knew"


def test_what_became_of_announced_starts_is_read_from_the_record(yard: Yard) -> None:
    """One node for which all queue; each ends when it was said to. A new process knows what the one before knew."""
    agent = yard.agent("a")
    jobs = [yard.submit(cpus=2, expected="10m", time_limit="1h") for _ in range(4)]
    now = clock() - 3_600.0
    yard.cycle(now)
    first = stage(jobs[1])
    assert first.announced["shown"]
    assert first.expected["seen"] == 0
    for number, job in enumerate(jobs[:3]):
        agent.start()
        agent.end(stage(job))
        yard.cycle(now + 600.0 * (number + 1))
    assert stage(jobs[1]).announced == first.announced, "the first range counts"
    assert stage(jobs[1]).expected is None
    told = LiveStore().load(clock()).announced["default", ""]
    assert (told.held, told.seen, told.low) == (2, 2, None), "too few to make the next range from"
