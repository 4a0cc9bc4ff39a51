"""The agent's side of a node whose clock is driven: real ledger, journal and queue, over parts that are scripted.

The process may be killed before or after any write of the ledger, between any two steps, and with its machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from agents.edge.allowance import Account, Allowance, Allowances
from agents.edge.job_file import JobRefused
from agents.edge.ledger import AcceptedJob, HostMoment, LocalLedger
from agents.edge.local_jobs import LocalJobs
from agents.protocol import (
    Desired,
    Device,
    Exit,
    Inventory,
    InventoryRef,
    Report,
    Timers,
    local_ids,
)  # fmt: skip
from agents.runtimes.scripted import ScriptedExecutor
from agents.tasks.journal import Journal
from agents.tasks.node import NodeTasks

T = TypeVar("T")
ACCOUNT: Final = Account(1_000, 1_000, "line3")
PROJECT: Final = "line3"
CARDS: Final = 3
GIB: Final = 2**30
_ALLOWED: Final = Allowances(
    [Allowance(PROJECT, ACCOUNT.name, kinds=["cpu", "gpu"], cpus=1, hours=12, running=4, waiting=500)]
)


class Killed(BaseException):
    """The agent's process ended here."""


class BrittleLedger(LocalLedger):
    """A ledger whose process may be killed before or after it writes."""

    killed: float = 0.0
    dice: random.Random

    def put(self, job: AcceptedJob) -> None:
        if self.dice.random() < self.killed:
            raise Killed
        super().put(job)
        if self.dice.random() < self.killed:
            raise Killed


@dataclass
class EdgeNode:
    """A node with three cards. ``accepted`` are the jobs whose submission was answered, ``asked`` all others."""

    name: str
    folder: Path
    dice: random.Random
    killed: float = 0.0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    executor: ScriptedExecutor = field(default_factory=ScriptedExecutor)
    up_s: float = 0.0
    boots: int = 0
    seq: int = 0
    kills: int = 0
    accepted: set[str] = field(default_factory=set)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open()

    def _moment(self) -> HostMoment:
        return HostMoment(1_000_000.0 + self.up_s, f"boot-{self.boots}", self.up_s)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def _open(self) -> None:
        async def opened() -> None:
            node = NodeTasks(
                self.name, self.folder / "parts", Journal(self.folder / "journal"), self.executor, f"boot-{self.boots}"
            )
            node.timers = Timers(suspect_s=15.0)
            node.open()
            ledger = BrittleLedger(self.folder / "edge", self._moment)
            ledger.dice, ledger.killed = self.dice, self.killed
            self.node, self.jobs = node, LocalJobs(node, _ALLOWED, ledger, lambda: self.devices)
            self.is_first = True

        (self.folder / "parts").mkdir(exist_ok=True)
        self._run(opened())

    @property
    def devices(self) -> list[Device]:
        cards = [Device(f"GPU-{self.name}-{n}", "gpu", "NVIDIA", "L4", n, 24 * GIB) for n in range(CARDS)]
        return [*cards, Device(f"cpu-{self.name}", "cpu", "Intel", "Xeon", 0, 64 * GIB, 64_000)]

    # -- what happens to it

    def kill(self) -> None:
        """End the process without notice, and start it again."""
        self.kills += 1

        async def dead() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._run(dead())
        self._run(asyncio.sleep(0))
        self._open()

    def reboot(self) -> None:
        """Cut the power: parts end, and the clock of the boot begins anew."""
        self.boots += 1
        self.executor.reboot(f"boot-{self.boots}")
        self.kill()

    def survives(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns; None if the process was killed in it."""
        try:
            return self._run(work)
        except (Killed, RuntimeError) as error:
            # A future that carries such an end tells it as a RuntimeError.
            if isinstance(error, RuntimeError) and "Killed" not in repr(error) and not isinstance(error, Killed):
                raise
            self.kill()
            return None

    def submit(self, job_id: str) -> None:
        """Submit a job, or submit it again if nobody answered."""
        kind = {"devices": {"kind": "gpu"}} if self.dice.random() < 0.5 else {}
        spec = self.asked.setdefault(job_id, {"name": "weld", "run": "true", "cpus": 0.5, "memory": "64MiB", **kind})
        try:
            if self.survives(self.jobs.submit(ACCOUNT, spec, job_id)) is not None:
                self.accepted.add(job_id)
        except JobRefused:
            pass

    def step(self, seconds: float) -> None:
        """Let time pass: what is due ends, and what may start starts."""
        self.up_s += seconds
        for part in list(self.executor.running):
            self.began.setdefault(part, self.up_s)
            due = self.due.setdefault(part, self.up_s + self.dice.expovariate(1 / 1_200))
            if due <= self.up_s:
                end = Exit(code=0) if self.dice.random() < 0.8 else Exit(code=3, cause="EXIT_CODE")
                ran = Exit(code=end.code, cause=end.cause, ran_s=self.up_s - self.began[part])
                self.executor.finish(part, ran)
        self.survives(self._look())

    async def _look(self) -> None:
        for part in self.node.live:
            self.node.look(part.intent.part)
        await self._drained()
        await self.node.sweep()
        self.node.again()
        await self.jobs.settle()
        await self._drained()

    async def _drained(self) -> None:
        own = asyncio.current_task()
        while rest := [task for task in asyncio.all_tasks() if task is not own]:
            await asyncio.wait(rest, timeout=5)

    # -- the link

    def report(self) -> Report:
        self.seq += 1
        inventory = Inventory(self.name, "Linux", "x86_64", 64, 64 * GIB, "none", "nobody", devices=self.devices)
        offers = self.jobs.offers(is_first=self.is_first)
        self.is_first = False
        return Report(
            1, "1.0.0", self.node.boot_id, self.node.start_seq, self.seq, self.node.generation,
            InventoryRef("same", inventory), here=self.node.here(), incarnation=self.node.incarnation,
            machine_id="machine", local=offers,
        )  # fmt: skip

    def take(self, desired: Desired) -> None:
        async def taken() -> None:
            self.node.apply(desired)
            self.jobs.heard()
            self.jobs.answered(desired.local)
            await self._drained()

        self.survives(taken())

    @property
    def doubled(self) -> int:
        """How many parts were launched more than once."""
        return sum(count > 1 for count in self.executor.launches.values())

    @property
    def open(self) -> list[str]:
        """The jobs that the record has not, or whose part is still here."""
        here = self.node.parts
        return [job.id for job in self.jobs.ledger.jobs.values() if job.is_open or local_ids(job.id).part in here]

    def close(self) -> None:
        self._run(self.node.close())
        self._run(self.loop.shutdown_default_executor())
        self.loop.close()
