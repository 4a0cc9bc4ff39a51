"""Random worlds: messages are lost, doubled, late, out of order, agents crash, machines reboot; then the air clears.

The agent is the real one (node, journal on disk, diff), its parts are scripted; the server is the wire's rules and no
more. Whatever happened, nothing ran twice, no whole device had two users, and both sides agree in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.protocol import (
    Conditions,
    Desired,
    DeviceClaim,
    Exit,
    Here,
    InventoryRef,
    PartSpec,
    Phase,
    Report,
    Wanted,
)
from agents.runtimes.scripted import ScriptedExecutor
from agents.tasks import diff
from agents.tasks.journal import Journal
from agents.tasks.node import NodeTasks
from tests.examples_count import examples

DEVICES = ("GPU-0", "GPU-1")
FAST_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Server:
    """What the wire asks of a server: it records growing phases, and forgets nothing by itself."""

    def __init__(self) -> None:
        self.generation = 0
        self.orders: dict[str, Wanted] = {}
        self.phases: dict[str, int] = {}
        self.ends: dict[str, Exit] = {}
        self.newest: tuple[int, int] = (0, 0)

    def change(self, order: Wanted) -> None:
        self.orders[order.part] = order
        self.phases.setdefault(order.part, Phase.ASSIGNED)
        self.generation += 1

    def take(self, report: Report) -> None:
        for here in report.here:
            self._record(here)
        self.newest = max(self.newest, (report.start_seq, report.seq))

    def _record(self, here: Here) -> None:
        if here.phase <= self.phases.get(here.part, 0):
            return
        self.phases[here.part] = here.phase
        if here.exit is not None:
            self.ends[here.part] = here.exit

    def desired(self) -> Desired:
        wanted = [order for part, order in self.orders.items() if self.phases[part] < Phase.ENDED]
        return Desired(self.generation, wanted=wanted, forget=list(self.ends), lineage="l")


class World:
    """One server, one agent, and the air between them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.server = Server()
        self.executor = ScriptedExecutor()
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.parts = 0
        self.boots = 0
        self.stopped: set[str] = set()
        self.finished: dict[str, Exit] = {}
        self.node = self._agent()
        self.seq = 0

    def _agent(self) -> NodeTasks:
        node = NodeTasks("n", self.folder, Journal(self.folder / "journal.jsonl"), self.executor, f"boot-{self.boots}")
        node.open()
        return node

    # -- what may happen

    def order_start(self) -> None:
        self.parts += 1
        claims = [
            DeviceClaim(uuid, "gpu", "nvidia", "H100", 0, self.random.choice([500, 1000]), 1)
            for uuid in self.random.sample(DEVICES, self.random.randint(0, 2))
        ]
        spec = PartSpec(1, "j", "s", "train", "p", 1, ["run"], devices=claims)
        self.server.change(Wanted(f"p{self.parts}", f"a{self.parts}", 1, "run", spec=spec))

    def order_stop(self) -> None:
        if self.server.orders:
            part = self.random.choice(list(self.server.orders))
            self.stopped.add(part)
            self.server.change(Wanted(part, self.server.orders[part].attempt, 1, "stop", grace_s=1.0))

    def send_down(self) -> None:
        self.down.append(msgspec.json.encode(self.server.desired()))

    def send_up(self) -> None:
        self.seq += 1
        report = Report(
            1,
            "1",
            self.node.boot_id,
            self.node.start_seq,
            self.seq,
            self.node.generation,
            InventoryRef(""),
            self.node.here(),
            Conditions(),
        )
        self.up.append(msgspec.json.encode(report))

    def deliver_down(self) -> None:
        if self.down:
            self.node.apply(msgspec.json.decode(self._pick(self.down), type=Desired))

    def deliver_up(self) -> None:
        if self.up:
            self.server.take(msgspec.json.decode(self._pick(self.up), type=Report))

    def _pick(self, air: list[bytes]) -> bytes:
        """Any message of the air, in any order; now and then it stays there and comes again."""
        index = self.random.randrange(len(air))
        return air[index] if self.random.random() < 0.2 else air.pop(index)

    def drop(self) -> None:
        for air in (self.up, self.down):
            if air and self.random.random() < 0.5:
                air.pop(self.random.randrange(len(air)))

    def end_one(self) -> None:
        if self.executor.running:
            part = self.random.choice(list(self.executor.running))
            end = Exit(code=self.random.choice([0, 0, 3]))
            self.finished[part] = end
            self.executor.finish(part, end)
            self.node.look(part)

    def look_around(self) -> None:
        for part in list(self.node.parts):
            self.node.look(part)
        self.node.again()

    async def sweep(self) -> None:
        await self.node.sweep()

    async def crash(self) -> None:
        """The agent's process vanishes: what was not on disk is lost, what it started lives on."""
        self.node.desired = None
        for task in list(self.node._tasks):
            task.cancel()
        await asyncio.gather(*self.node._tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            os.close(self.node.journal._file)
        self.node = self._agent()

    async def reboot(self) -> None:
        self.boots += 1
        self.executor.reboot(f"boot-{self.boots}")
        await self.crash()

    # -- laws

    def check(self) -> None:
        assert all(count == 1 for count in self.executor.launches.values()), self.executor.launches
        users: dict[str, list[bool]] = {}
        for intent in self.executor.running.values():
            for claim in intent.devices:
                users.setdefault(claim.uuid, []).append(diff.claims_whole(claim))
        assert all(len(found) == 1 or not any(found) for found in users.values()), users
        assert self.executor.stops.keys() <= self.stopped

    async def step(self, action: str) -> None:
        act: Callable[[], object] = getattr(self, action)
        result = act()
        if asyncio.iscoroutine(result):
            await result
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)
        self.check()

    async def clear_air(self) -> None:
        """From here on every message arrives, and every process ends; both sides must come to agree."""
        for _ in range(60):
            self.send_down()
            while self.down:
                self.node.apply(msgspec.json.decode(self.down.pop(0), type=Desired))
            await asyncio.gather(*list(self.node._tasks), return_exceptions=True)
            self.look_around()
            self.end_one()
            await asyncio.gather(*list(self.node._tasks), return_exceptions=True)
            self.send_up()
            while self.up:
                self.deliver_up()
            self.check()
            if all(phase == Phase.ENDED for phase in self.server.phases.values()):
                return

    def settle(self) -> None:
        assert set(self.server.phases.values()) <= {Phase.ENDED}, self.server.phases
        assert not self.executor.running
        assert all(end.cause != "LAUNCH_FAILED" for end in self.server.ends.values()), self.server.ends
        for part, end in self.finished.items():
            assert self.server.ends[part] == end
        for part in self.executor.launches.keys() - self.finished.keys():
            cause = self.server.ends[part].cause
            assert part in self.stopped or cause in ("NODE_REBOOT", "SUPERVISOR_LOST"), (part, cause)


ACTIONS = [
    "order_start",
    "order_start",
    "order_stop",
    "send_down",
    "send_down",
    "send_up",
    "send_up",
    "deliver_down",
    "deliver_down",
    "deliver_down",
    "deliver_up",
    "deliver_up",
    "drop",
    "end_one",
    "look_around",
    "sweep",
    "crash",
    "reboot",
]


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(ACTIONS), min_size=10, max_size=80))
def test_whatever_the_air_does_nothing_runs_twice_and_both_sides_agree(seed: int, actions: list[str]) -> None:
    async def live() -> None:
        with tempfile.TemporaryDirectory(dir=FAST_DISK) as folder:
            world = World(Path(folder), seed)
            for action in actions:
                await world.step(action)
            await world.clear_air()
            world.settle()
            await world.node.close()

    asyncio.run(live())
