"""Under ``on_node_lost: requeue`` no partition, frozen agent or frozen server makes a job run twice at once, or lost.

Agents reach the control plane through a proxy each. Fifteen seconds of faults, or as many as ``YARD_CHAOS_S``
says, after the seed ``YARD_CHAOS_SEED``; jobs write down when they live, and that is judged afterwards.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.chaos.oracle import BEATS, Run, doubled, runs
from tests.chaos.partition import DOWN, UP, Partition
from tests.chaos.stack import GATEWAY, eventually, standing
from tests.chaos.test_job import Yard, on, processes_of

pytestmark = pytest.mark.chaos

TIMERS = "report_s=1,suspect_s=2,lost_s=4,lease_s=5"
NAMES = ("north", "south", "west")
AT_ONCE = 4
# Longer than it takes to give a node up: what was not ended at its lease is still there when the next one starts.
BEATS_EACH = 440


@dataclass
class Chaos:
    """A stack, agents behind partitions, and the faults that are in effect, each with when and how it heals."""

    yard: Yard
    folder: Path
    dice: random.Random
    walls: dict[str, Partition] = field(default_factory=dict)
    healing: dict[str, tuple[float, Callable[[], None]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    jobs: list[int] = field(default_factory=list)

    def bring_up(self) -> None:
        (local,) = [node["name"] for node in self.yard.client.nodes.list()]
        for name in NAMES:
            wall = self.walls[name] = Partition(int(self.yard.up.agents_url.rpartition(":")[2]))
            self.yard.agent(name, wall.url)
        self.yard.client.nodes.drain(local, "the test uses agents of its own")

    def submit(self) -> None:
        """Keep as many jobs alive as there are to be."""
        alive = list(self.yard.client.jobs.list(state=["PENDING", "RUNNING"]))
        for _ in range(AT_ONCE - len(alive)):
            job = self.yard.client.jobs.submit(
                {
                    "name": "beats",
                    "cpus": 1,
                    "memory": "64MiB",
                    "expected": "22s",
                    "time_limit": "5m",
                    "on_node_lost": "requeue",
                    "retry": {"max": 50, "backoff": "1s"},
                    "preemption": {"grace": "1s"},
                    "command": [sys.executable, "-c", BEATS, str(self.folder), str(BEATS_EACH)],
                }
            )
            self.jobs.append(job.number)

    def agent(self, name: str) -> psutil.Process:
        return psutil.Process(self.yard.agents[NAMES.index(name)].pid)

    def harm(self) -> None:
        """Begin one fault where there is none; at most two of three nodes are cut off, for more are an outage."""
        self.heal(only_due=True)
        free = [name for name in NAMES if name not in self.healing]
        if len(free) < 2:
            return
        name = self.dice.choice(free)
        wall = self.walls[name]
        kind = self.dice.choice(["short", "long", UP, DOWN, "flap", "agent", "server"])
        for_s = self.dice.uniform(0.5, 3) if kind in ("short", "flap") else self.dice.uniform(4, 28)
        mend = wall.heal
        if kind in ("short", "long"):
            wall.block(UP, DOWN)
        elif kind in (UP, DOWN):
            wall.block(kind)
        elif kind == "flap":
            wall.block(self.dice.choice([UP, DOWN]))
            wall.cut()
        elif kind == "agent":
            frozen = self.agent(name)
            frozen.send_signal(signal.SIGSTOP)

            def mend() -> None:
                frozen.send_signal(signal.SIGCONT)
        else:
            if "server" in self.healing:
                return
            name, for_s = "server", self.dice.uniform(1, 12)
            server = self.yard.up.named(GATEWAY)
            server.send_signal(signal.SIGSTOP)

            def mend() -> None:
                server.send_signal(signal.SIGCONT)

        self.counts[kind] += 1
        self.healing[name] = (time.monotonic() + for_s, mend)

    def heal(self, *, only_due: bool = False) -> None:
        for name, (at, mend) in list(self.healing.items()):
            if not only_due or time.monotonic() >= at:
                mend()
                if self.dice.random() < 0.3 and name in self.walls:
                    self.walls[name].cut()
                del self.healing[name]


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    """A stack with short timers and three agents behind walls of their own."""
    folder = tmp_path / "oracle"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        for yard in on(up):
            made = Chaos(yard, folder, random.Random(int(os.environ.get("YARD_CHAOS_SEED", "1"))))
            made.bring_up()
            yield made
            made.heal()
        for wall in made.walls.values():
            wall.close()


def test_no_job_is_doubled_lost_or_orphaned(chaos: Chaos) -> None:
    until = time.monotonic() + float(os.environ.get("YARD_CHAOS_S", "15"))
    next_fault = 0.0
    while time.monotonic() < until:
        if "server" not in chaos.healing:
            chaos.submit()
        if time.monotonic() >= next_fault:
            chaos.harm()
            next_fault = time.monotonic() + chaos.dice.uniform(0.5, 4)
        chaos.heal(only_due=True)
        time.sleep(0.1)
    chaos.heal()
    states = {}

    def is_over() -> bool:
        states.update({job.number: job.state for job in chaos.yard.client.jobs.list(q="beats")})
        return all(states.get(number) in ("COMPLETED", "FAILED", "CANCELLED") for number in chaos.jobs)

    # A job that was often lost waits long for its next attempt: the patience only bounds a failure.
    over = any(eventually(is_over) for _ in range(4))
    found = runs(chaos.folder)
    lost = [number for number in chaos.jobs if sum(run.is_done for run in found.get(number, [])) < 1]
    orphaned = [process.pid for process in processes_of(str(chaos.folder))]
    tried = sum(len(each) for each in found.values())
    print(f"\n{len(chaos.jobs)} jobs, {tried} processes; faults {dict(chaos.counts)}")
    print(f"doubled {len(doubled(found))}, lost {len(lost)}, orphaned {len(orphaned)}")
    assert doubled(found) == []
    assert over, states
    assert set(states.values()) == {"COMPLETED"}, states
    assert lost == []
    assert orphaned == []


def test_two_that_are_alive_at_once_are_seen() -> None:
    apart = {1: [Run(1, 1, 10, 0.0, 1.0, is_done=False), Run(2, 2, 11, 1.1, 2.0, is_done=True)]}
    together = {2: [Run(1, 1, 10, 0.0, 1.2, is_done=False), Run(2, 2, 11, 1.1, 2.0, is_done=True)]}
    assert doubled(apart) == []
    assert len(doubled(apart | together)) == 1
