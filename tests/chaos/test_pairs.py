"""Two of everything run side by side, and any one is killed at any time: each job runs once, and people are served.

For eight seconds, or as many as ``YARD_CHAOS_S`` says, after the seed ``YARD_CHAOS_SEED``. The first of each pair is
the local stack's own, started again by its keeper; one public address leads to whichever server of a pair listens.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from deploy.local import parts
from deploy.local.home import Home
from deploy.local.port import free_port
from deploy.local.service import ROOT
from switchyard.client import Client
from switchyard.problem import ApiProblem, Unreachable
from tests.chaos.oracle import BEATS, doubled, runs
from tests.chaos.partition import Partition
from tests.chaos.stack import GATEWAY, WEB, Up, eventually, standing
from tests.chaos.test_job import Yard

pytestmark = pytest.mark.chaos

AT_ONCE = 3
BEATS_EACH = 20
KILL_EVERY_S = 1.0
LEAST_KILLED = 4
WORKER = "celery"

Answer = TypeVar("Answer")


def celery(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "celery", "--app", "controlplane", "--quiet", *arguments, "--loglevel", "ERROR"]


@dataclass
class Pairs:
    """The stack, the second of everything, and what was done to them."""

    up: Up
    folder: Path
    dice: random.Random
    seconds: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    jobs: set[int] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)

    def bring_up(self) -> None:
        environment, home = self.up.environment, Home(self.up.home)
        # Beyond the ports of the stack itself, whose router may not listen yet.
        web, gateway = free_port(self.up.port + 10), free_port(self.up.port + 11)
        self.environment = {**environment, "YARD_DB_POOL": "4"}
        self.commands = {
            "web": list(parts.web(home, web, "self", {}).command),
            "gateway": list(parts.gateway(home, gateway, "self", {}).command),
            "scheduler": celery("worker", "--queues", "scheduling,fleet", "--concurrency", "1", "-n", "scheduler@2"),
            "questions": celery(
                "worker", "--queues", "questions,simulations", "--pool", "threads", "-n", "questions@2"
            ),
            "maintenance": celery("worker", "--queues", "maintenance", "--concurrency", "1", "-n", "maintenance@2"),
            "beat": celery("beat", "--schedule", str(self.folder / "beat")),
        }
        for name in self.commands:
            self.start(name)
        gateway_port = int(environment["YARD_AGENTS_URL"].rpartition(":")[2])
        self.doors = {"web": Partition(self.up.port, web), "gateway": Partition(gateway_port, gateway)}
        token = tomllib.loads((self.up.home / "client.toml").read_text())["token"]
        self.client = Client(self.doors["web"].url, token)
        self.ports = {"web": (self.up.port, web), "gateway": (gateway_port, gateway)}

    def start(self, name: str) -> None:
        environment = self.environment if name in ("web", "gateway") else {**self.environment, "YARD_DB_POOL": "0"}
        self.seconds[name] = subprocess.Popen(
            self.commands[name], cwd="/", env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def take_down(self) -> None:
        for process in self.seconds.values():
            process.kill()
            process.wait()
        self.client.close()
        for door in self.doors.values():
            door.close()

    def harm(self) -> None:
        """Kill one of a pair whose other one lives."""
        victims: dict[str, Callable[[], None]] = {}
        for name, words in (("web", WEB), ("gateway", GATEWAY)):
            if all(answers(port) for port in self.ports[name]):
                victims[f"first {name}"] = self.first(words)
                victims[f"second {name}"] = self.second(name)
        if (worker := self.own(WORKER)) is not None and all(
            self.seconds[name].poll() is None for name in ("scheduler", "questions", "maintenance", "beat")
        ):
            victims["first worker"] = worker.kill
            victims |= {f"second {name}": self.second(name) for name in ("scheduler", "questions", "beat")}
        if victims:
            name = self.dice.choice(sorted(victims))
            victims[name]()
            self.killed[name] += 1

    def own(self, words: str) -> psutil.Process | None:
        """The stack's own process, where it is there and has lived for a moment."""
        for child in self.up.keeper().children():
            try:
                if words in " ".join(child.cmdline()) and time.time() - child.create_time() > 1:
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    def first(self, words: str) -> Callable[[], None]:
        def kill() -> None:
            if (process := self.own(words)) is not None:
                process.kill()

        return kill

    def second(self, name: str) -> Callable[[], None]:
        def kill() -> None:
            self.seconds[name].send_signal(signal.SIGKILL)
            self.seconds[name].wait()
            self.start(name)

        return kill

    def submit(self) -> None:
        spec = {
            "name": "beats",
            "cpus": 0.1,
            "memory": "64MiB",
            "command": [sys.executable, "-c", BEATS, str(self.folder / "runs"), str(BEATS_EACH)],
        }
        alive = again(lambda: list(self.client.jobs.list(state=["PENDING", "RUNNING"])))
        for _ in range(AT_ONCE - len(alive)):
            key = str(uuid.uuid4())  # whatever is killed while it is sent, it is one job
            self.jobs.add(again(lambda key=key: self.client.jobs.submit(spec, idempotency_key=key)).number)  # type: ignore[misc]

    def keep_asking(self, until: float) -> None:
        while time.monotonic() < until:
            self.ask()
            time.sleep(0.1)

    def ask(self) -> bool:
        """Ask the engine for a dry run; whether it answered."""
        try:
            self.client.jobs.preview({"name": "trial", "run": "true", "cpus": 0.1})
        except Unreachable:
            word = "cut"
        except ApiProblem as problem:
            word = str(problem.status)
        else:
            word = "answered"
        self.asked[word] += 1
        return word == "answered"


def answers(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def again(call: Callable[[], Answer]) -> Answer:
    """The answer of the control plane, asked again where the server that was asked is killed meanwhile."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except (Unreachable, ApiProblem):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Pairs]:
    (tmp_path / "runs").mkdir()
    with standing() as up:
        up.started()
        made = Pairs(up, tmp_path, random.Random(int(os.environ.get("YARD_CHAOS_SEED", "1"))))
        made.bring_up()
        yard = Yard(up, made.client)
        try:
            yard.agent("north", made.doors["gateway"].url)
            for node in made.client.nodes.list():
                if node["name"] != "north":
                    made.client.nodes.drain(node["name"], "the test uses an agent of its own")
            yield made
        finally:
            for agent in yard.agents:
                agent.terminate()
                agent.wait()
            made.take_down()


def test_whatever_of_a_pair_is_killed_each_job_runs_once_and_people_are_served(pairs: Pairs) -> None:
    until, next_at = time.monotonic() + float(os.environ.get("YARD_CHAOS_S", "8")), 0.0
    asking = threading.Thread(target=pairs.keep_asking, args=(until,))
    asking.start()
    # On however busy a machine: some were killed.
    while time.monotonic() < until or sum(pairs.killed.values()) < LEAST_KILLED:
        pairs.submit()
        if time.monotonic() >= next_at:
            pairs.harm()
            next_at = time.monotonic() + KILL_EVERY_S
        time.sleep(0.05)
    asking.join()
    states: dict[int, str] = {}

    def is_over() -> bool:
        states.update({job.number: job.state for job in again(lambda: list(pairs.client.jobs.list(q="beats")))})
        return all(states.get(number) in ("COMPLETED", "FAILED", "CANCELLED") for number in pairs.jobs)

    assert eventually(is_over), states
    found = runs(pairs.folder / "runs")
    print(f"\n{len(pairs.jobs)} jobs; killed {dict(pairs.killed)}; dry runs {dict(pairs.asked)}")
    assert {states[number] for number in pairs.jobs} == {"COMPLETED"}, states
    assert set(found) == pairs.jobs, "what was submitted, and no second time"
    assert {len(each) for each in found.values()} == {1}, "each was begun once"
    assert doubled(found) == []
    assert set(pairs.asked) <= {"answered", "cut", "503", "429"}
    assert eventually(pairs.ask), "the engine answers again"
    checked = subprocess.run(
        [sys.executable, "manage.py", "check_invariants"],
        cwd=ROOT,
        env=pairs.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
