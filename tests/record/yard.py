"""A small live cluster without agents: rows made through the services, agents played by hand-written reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from django.contrib.auth.models import Group, Permission

from agents import protocol
from agents.protocol import Desired, Exit, Here, Inventory, InventoryRef, Phase, Report
from controlplane.accounts import roles
from controlplane.accounts.models import Project, User
from controlplane.dispatch import desired
from controlplane.fleet import service as fleet
from controlplane.fleet import world
from controlplane.fleet.identity import Caller
from controlplane.fleet.models import Node
from controlplane.jobs import dependencies, halving, record, service
from controlplane.jobs.models import Job, Stage
from controlplane.pools import profiles
from controlplane.pools.models import Pool, PriorityClass
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.model.types import Estimate
from scheduler.core.planning import aside, engine
from scheduler.core.planning.cycle import Cycle, run
from scheduler.decisions import canonical
from scheduler.decisions.replay import with_waits_of

GIB = 2**30


def cpu(name: str, cores: int = 2, memory_gib: int = 8) -> protocol.Device:
    return protocol.Device(
        uuid=f"cpu-{name}",
        kind="cpu",
        vendor="GenuineIntel",
        model="Xeon",
        index=0,
        memory_bytes=memory_gib * GIB,
        capacity_milli=cores * 1000,
    )


def gpu(name: str, index: int = 0, model: str = "NVIDIA H100 80GB HBM3") -> protocol.Device:
    return protocol.Device(
        uuid=f"GPU-{name}-{index}", kind="gpu", vendor="NVIDIA", model=model, index=index, memory_bytes=80 * GIB
    )


@dataclass
class Agent:
    """Plays one node: keeps what it runs and reports it."""

    node: Node
    devices: list[protocol.Device]
    container_engine: str | None = None
    disk_bytes: int = 0
    boot_id: str = "boot-1"
    machine_id: str = "machine-1"
    incarnation: str = "process-1"
    caller: Caller = field(default_factory=Caller)
    start_seq: int = 1
    here: dict[str, Here] = field(default_factory=dict)
    seq: Any = field(default_factory=lambda: itertools.count(1))
    desired: Desired | None = None

    def report(
        self, *, start_seq: int | None = None, conditions: protocol.Conditions | None = None
    ) -> record.ReportAnswer:
        inventory = Inventory(
            hostname=self.node.name,
            os="Linux",
            arch="x86_64",
            cpus=2,
            memory_bytes=8 * GIB,
            isolation="none",
            runs_as="nobody",
            container_engine=self.container_engine,
            devices=self.devices,
            disk_bytes=self.disk_bytes,
        )
        message = Report(
            proto=1,
            agent="1.0.0",
            boot_id=self.boot_id,
            start_seq=self.start_seq if start_seq is None else start_seq,
            seq=next(self.seq),
            seen_generation=self.desired.generation if self.desired else 0,
            inventory=InventoryRef(hash=str(hash(repr((self.devices, self.disk_bytes)))), full=inventory),
            here=list(self.here.values()),
            conditions=conditions or protocol.Conditions(),
            incarnation=self.incarnation,
            machine_id=self.machine_id,
        )
        answer = record.report(self.node.id, message, self.caller)
        for part in answer.forget:
            self.here.pop(part, None)
        return answer

    def look(self) -> list[protocol.Wanted]:
        """The orders as they stand."""
        self.desired = desired.compose(self.node.id, {part: item.phase for part, item in self.here.items()})
        return self.desired.wanted

    def start(self) -> list[str]:
        """Begins all that is wanted and reports it running; returns the names of the stages."""
        names = []
        for wanted in self.look():
            if wanted.do == "run" and wanted.part not in self.here:
                assert wanted.spec is not None
                self.here[wanted.part] = Here(
                    part=wanted.part, attempt=wanted.attempt, epoch=wanted.epoch, phase=Phase.RUNNING, pid=100
                )
                names.append(wanted.spec.stage)
        self.report()
        return names

    def set(self, stage: Stage, phase: Phase, **changes: Any) -> record.ReportAnswer:
        """Reports the live part of ``stage`` on this node in another phase."""
        part = stage.attempts.get(ended_at=None).parts.get(node=self.node)
        fields = {"part": str(part.id), "attempt": str(part.attempt_id), "epoch": part.epoch, "pid": 100}
        self.here[str(part.id)] = Here(**{**fields, **changes}, phase=phase)
        return self.report()

    def end(self, stage: Stage, code: int = 0, **fields: Any) -> record.ReportAnswer:
        """Reports the live part of ``stage`` ended."""
        cause = fields.pop("cause", "" if code == 0 else "EXIT_CODE")
        return self.set(stage, Phase.ENDED, exit=Exit(code=code, cause=cause, **fields))


class Yard:
    """The cluster: a user, a project, a pool, and as many agents as a test asks for."""

    def __init__(self, storage: str = "/shared") -> None:
        self.user = User.objects.create(username="ada", is_staff=True)
        if not Group.objects.exists():  # a test with transactions of its own has emptied all tables
            roles.install(Group, Permission)
        self.user.groups.set(Group.objects.filter(name__in=[roles.OPERATOR, roles.ACCOUNTANT]))
        self.project = Project.objects.create(name="default")
        self.pool = Pool.objects.create(name="default", storage_path=storage)
        for name, value in (("urgent", 1000), ("high", 750), ("medium", 500), ("low", 250)):
            PriorityClass.objects.create(name=name, value=value)
        self.store = LiveStore()
        self.planner = aside.TolerantPlanner()
        world.recent_nodes(within_s=0.0)  # nothing of the test before is remembered

    def agent(self, name: str, *devices: protocol.Device, disk_bytes: int = 0) -> Agent:
        node, _ = fleet.enrol(fleet.make_join_token(self.pool), name)
        agent = Agent(node, list(devices) or [cpu(name)], disk_bytes=disk_bytes)
        agent.report()
        world.recent_nodes(within_s=0.0)  # jobs for it are accepted at once
        return agent

    def submit(self, **spec: Any) -> Job:
        if "stages" not in spec:
            spec.setdefault("run", "true")
        return service.submit({"name": "job", **spec}, self.user)

    def cycle(self, now: float | None = None) -> Cycle:
        """One cycle as the live loop has it; what it decided follows from the snapshot alone."""
        now = clock() if now is None else now
        halving.settle()
        dependencies.settle()
        done = run(self.store, self.store.profile, now, self.planner)
        self.check_feed(now)
        anew = engine.plan(done.snapshot, profiles.of(done.snapshot.pools), now)
        if done.partial:
            anew = with_waits_of(anew, done.plan)
        assert canonical.digest(anew) == canonical.digest(done.plan)
        return done

    def check_feed(self, now: float) -> None:
        """What was read piece by piece as it changed is what a store finds that reads everything."""
        seen, whole = self.store.load(now), LiveStore().load(now)
        for some, others in ((seen.waiting, whole.waiting), (seen.running, whole.running)):
            assert _bare(some) == _bare(others)
        assert seen.nodes == whole.nodes


def _bare(some: Iterable[Any]) -> dict[str, Any]:
    """Without predictions, which are made anew every twenty seconds and a few at a time."""
    return {one.id: replace(one, estimate=Estimate(1.0, 1.0), scaling=0.0) for one in some}


def stage(job: Job, name: str = "main") -> Stage:
    return job.stages.get(name=name)


def states(job: Job) -> dict[str, str]:
    job.refresh_from_db()
    return {"job": job.state, **dict(job.stages.values_list("name", "state"))}
