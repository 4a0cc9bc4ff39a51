"""Short stages beside long ones on one core: the agent's feedback queue against first come, first served, and sharing.

Real processes burn CPU time on the same core and are suspended and resumed as the agent does it. Arrivals and responses
are counted on a clock of work, the CPU time that all of them got so far: a busy machine slows the run, not the result.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agents.resources import adjust
from agents.resources.adjust import Reach
from agents.resources.feedback_queue import FeedbackQueue, turn
from agents.resources.turns import PERIOD_S
from agents.supervisor import procfs
from bench.figures import Figures

LONG_S, SHORT_S = 2.0, 0.1
LONGS, SHORTS = 3, 8
FIRST_SHORT_AT_S, BETWEEN_S = 0.6, 0.45
LOOK_S = 0.004

# Which of the stages that are there must not run, given how much of the core each has used, in order of arrival.
Policy = Callable[[float, dict[str, float]], frozenset[str]]


@dataclass
class Stage:
    """One stage: when it arrives and what it needs, on the clock of work; then its process and when it ended."""

    name: str
    arrives_s: float
    needs_s: float
    pid: int = 0
    ended_s: float | None = None

    @property
    def used_s(self) -> float:
        """CPU seconds of its process so far."""
        if not self.pid:
            return 0.0
        if self.ended_s is not None:
            return self.needs_s
        try:
            # The clock of another process, as clock_getcpuclockid(3) makes its number.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return self.needs_s


def stages() -> list[Stage]:
    """The same work for every policy: long stages that are there first, short ones that come one after the other."""
    longs = [Stage(f"long{number}", 0.0, LONG_S) for number in range(LONGS)]
    return longs + [Stage(f"short{number}", FIRST_SHORT_AT_S + number * BETWEEN_S, SHORT_S) for number in range(SHORTS)]


def _burn(needs_s: float, core: int) -> None:
    os.sched_setaffinity(0, {core})
    while time.process_time() < needs_s:
        pass


def _fork(stage: Stage, core: int) -> None:
    stage.pid = os.fork()
    if stage.pid == 0:
        try:
            _burn(stage.needs_s, core)
        finally:
            os._exit(0)


@contextmanager
def _burning(stages_: list[Stage]) -> Iterator[None]:
    """End what still runs, whatever happens."""
    try:
        yield
    finally:
        for stage in stages_:
            if stage.pid and stage.ended_s is None:
                procfs.send(stage.pid, signal.SIGKILL)
                os.waitpid(stage.pid, 0)


def play(policy: Policy) -> dict[str, float]:
    """Run all stages under a policy; answers the response of each, in seconds of work, by name."""
    core = max(os.sched_getaffinity(0))
    todo = stages()
    everybody = list(todo)
    paused: frozenset[str] = frozenset()
    decided_at = 0.0
    with _burning(everybody):
        while any(stage.ended_s is None for stage in everybody):
            work_s = sum(stage.used_s for stage in everybody)
            is_news = False
            while todo and todo[0].arrives_s <= work_s:
                _fork(todo.pop(0), core)
                is_news = True
            here = [stage for stage in everybody if stage.pid and stage.ended_s is None]
            for stage in here:
                if os.waitpid(stage.pid, os.WNOHANG)[0]:
                    stage.ended_s = max(stage.arrives_s + stage.needs_s, work_s)
                    is_news = True
            if is_news or time.monotonic() - decided_at >= PERIOD_S:
                decided_at = time.monotonic()
                paused = _follow(policy, paused, [stage for stage in here if stage.ended_s is None])
            time.sleep(LOOK_S)
    return {stage.name: (stage.ended_s or 0.0) - stage.arrives_s for stage in everybody}


def _follow(policy: Policy, before: frozenset[str], here: list[Stage]) -> frozenset[str]:
    """Suspend and resume as the policy says now."""
    paused = policy(time.monotonic(), {stage.name: stage.used_s for stage in here})
    for stage in here:
        if (stage.name in paused) != (stage.name in before):
            act = adjust.suspend if stage.name in paused else adjust.resume
            act(Reach(family=lambda pid=stage.pid: [pid]))  # type: ignore[misc]
    return paused


def first_come() -> Policy:
    """One at a time, in the order of arrival."""
    return lambda now, used: frozenset(list(used)[1:])


def sharing() -> Policy:
    """Everybody at once: the kernel shares the core."""
    return lambda now, used: frozenset()


def feedback() -> Policy:
    """The agent's feedback queue, with its default rules."""
    queue = FeedbackQueue()

    def decide(now: float, used: dict[str, float]) -> frozenset[str]:
        nonlocal queue
        queue = turn(queue, now, used)
        return queue.paused

    return decide


def measure() -> Figures:
    """Play the same work under each policy and compare the mean response of its short stages."""
    responses = {
        name: play(policy()) for name, policy in (("fifo", first_come), ("sharing", sharing), ("mlfq", feedback))
    }
    short = {
        name: statistics.mean(value for stage, value in told.items() if stage.startswith("short"))
        for name, told in responses.items()
    }
    long = {name: statistics.mean(told[f"long{number}"] for number in range(LONGS)) for name, told in responses.items()}
    return Figures(
        {
            "mlfq_short_response_ratio_fifo": short["mlfq"] / short["fifo"],
            "mlfq_short_response_ratio_sharing": short["mlfq"] / short["sharing"],
            "mlfq_short_response_s": short["mlfq"],
            "fifo_short_response_s": short["fifo"],
            "sharing_short_response_s": short["sharing"],
            "mlfq_long_response_ratio_sharing": long["mlfq"] / long["sharing"],
        },
        [f"{SHORTS} stages of {SHORT_S:g} s beside {LONGS} of {LONG_S:g} s on one core; seconds are seconds of work"],
    )


if __name__ == "__main__":
    print(measure().table())
