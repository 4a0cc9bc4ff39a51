"""A yard in the middle of a day's work, as rows: the pages' tests and the screenshots look at it.

Jobs come in by the same submission as everywhere; what then became of them is written directly, because it lies in the
past. Every node but one is simulated, and says so. Names that look like markup are there on purpose.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
from django.core.management import call_command
from django.utils import timezone

from agents import ends
from agents.notes import NoteText
from agents.protocol import Phase
from controlplane.accounts import service_accounts
from controlplane.accounts.models import Member, Project, User
from controlplane.accounts.service import make_token
from controlplane.clauses import Told, clause, of_agent, of_engine, told
from controlplane.fleet.models import Device, DeviceSample, Node, PartSample
from controlplane.jobs import logs, service
from controlplane.jobs.curves import Curve
from controlplane.jobs.models import Attempt, Checkpoint, Claim, Curves, Event, Job, Part, Stage
from controlplane.pools import profiles as own
from controlplane.pools.models import Budget, Limit, Pool, ProfileVersion, Quota
from controlplane.schedules.models import Schedule, ScheduleRun
from controlplane.scheduling import shadow
from controlplane.scheduling.recorder import Noted, Recorder
from controlplane.scheduling.store import LiveStore
from controlplane.simulations import worker
from controlplane.simulations.models import Simulation
from controlplane.usage import ledger
from controlplane.usage.models import LedgerDay, LedgerEntry, Price
from scheduler import profiles
from scheduler.core.model import clauses as engine_clauses
from scheduler.core.model import retry
from scheduler.core.planning import engine
from scheduler.core.planning.cycle import Cycle
from scheduler.core.ports import Applied

GIB = 2**30
HOSTILE = '<img src=x onerror="alert(1)">'
PASSWORD = "a-long-password-for-tests"
SAMPLE_S, SAMPLED_S = 3, 960


@dataclass(frozen=True)
class Shape:
    """A kind of machine."""

    accelerator: tuple[str, str, str, int] | None
    count: int
    sockets: int
    cpu: tuple[str, str]
    cores: int


SHAPES = {
    "g": Shape(("gpu", "nvidia", "H100", 80), 8, 2, ("intel", "Xeon Platinum 8480C"), 56),
    "a": Shape(("gpu", "amd", "MI300X", 192), 8, 2, ("amd", "EPYC 9654"), 96),
    "n": Shape(("npu", "huawei", "Ascend 910B", 64), 8, 4, ("huawei", "Kunpeng 920"), 48),
    "c": Shape(None, 0, 2, ("amd", "EPYC 9654"), 96),
}


class Yard:
    """The seeded rows by name. ``now`` is the moment at which the picture was taken."""

    def __init__(self) -> None:
        self.now = timezone.now()
        self.rng = random.Random(7)
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}

    # -- what there is

    def people(self) -> None:
        call_command("bootstrap", "--no-tokens", verbosity=0, stdout=_Silent())
        self.admin = User.objects.get(username="admin")
        self.admin.set_password(PASSWORD)
        self.admin.save()
        for name, project in (
            ("lin.wei", "vision"),
            ("chen.yu", "speech"),
            ("ma.jun", "vision"),
            ("stranger", "other"),
        ):
            team, _ = Project.objects.get_or_create(name=project)
            user = User.objects.create_user(name, password=PASSWORD, default_project=team)
            Member.objects.create(project=team, user=user, role=Member.Role.MEMBER)

    def fleet(self, names: Sequence[str]) -> None:
        pool = Pool.objects.get(name="simulated")
        for name in names:
            self.node(name, SHAPES[name[0]], pool)
        self.node(
            "workstation", Shape(None, 0, 1, ("intel", "Core i9-13900K"), 24), Pool.objects.get(name="default"), False
        )

    def node(self, name: str, shape: Shape, pool: Pool, simulated: bool = True) -> None:
        node = Node.objects.create(
            name=name,
            state="READY",
            credential_digest=uuid.uuid4().hex,
            simulated=simulated,
            agent_version="0.1.0",
            runs_as="uid 65534 (nobody)" if simulated else "lin.wei (uid 1000)",
            isolation="none (simulated)" if simulated else "process group",
            hostname=name,
            os="Debian GNU/Linux 12",
            arch="aarch64" if shape.cpu[0] == "huawei" else "x86_64",
            memory_bytes=shape.sockets * 512 * GIB,
            last_report_at=self.now,
        )
        node.pools.add(pool)
        self.nodes[name] = node
        rows = [
            Device(
                node=node,
                uuid=f"{name}-cpu{socket}",
                kind="cpu",
                vendor=shape.cpu[0],
                model=shape.cpu[1],
                index=socket,
                memory_bytes=512 * GIB,
                capacity_milli=shape.cores * 1000,
                numa=socket,
                simulated=simulated,
            )
            for socket in range(shape.sockets)
        ]
        if shape.accelerator:
            kind, vendor, model, memory = shape.accelerator
            rows += [
                Device(
                    node=node,
                    uuid=f"{name}-{kind}{index}",
                    kind=kind,
                    vendor=vendor,
                    model=model,
                    index=index,
                    memory_bytes=memory * GIB,
                    simulated=simulated,
                )
                for index in range(shape.count)
            ]
        Device.objects.bulk_create(rows)

    # -- what became of jobs

    def submit(self, key: str, user: str, ago_s: float, spec: dict[str, Any]) -> Job:
        job = service.submit({"pool": "simulated", **spec}, User.objects.get(username=user))
        at = self.now - timedelta(seconds=ago_s)
        Job.objects.filter(pk=job.pk).update(submitted_at=at)
        Stage.objects.filter(job=job, eligible_at__isnull=False).update(eligible_at=at)
        job.refresh_from_db()
        job.events.all().delete()
        what = told(clause("Submitted", job=str(job), actor=user))
        Event.objects.create(job=job, seq=1, at=at, kind="submitted", actor=user, text=what.text, said=what.said)
        self.jobs[key] = job
        return job

    def attempt(
        self,
        key: str,
        stage: str,
        node_names: Sequence[str],
        devices: int,
        start_s: float,
        end_s: float | None = None,
        *,
        cause: str = "",
        exit_code: int | None = None,
        cores: int = 8,
        detail: Told = Told(),  # noqa: B008 - frozen
        lasts_s: float = 0.3 * 8 * 3600,
    ) -> Attempt:
        """One try of a stage, from ``start_s`` to ``end_s`` seconds ago; None where it runs still.

        ``lasts_s`` is for how long it was foreseen to run when it was placed.
        """
        row = self.jobs[key].stages.get(name=stage)
        start = self.now - timedelta(seconds=start_s)
        end = None if end_s is None else self.now - timedelta(seconds=end_s)
        number = row.attempts.count() + 1
        why = _why_here(node_names, devices, lasts_s)
        attempt = Attempt.objects.create(
            stage=row,
            number=number,
            epoch=number,
            created_at=start,
            started_at=start + timedelta(seconds=4),
            estimate={"p50_s": lasts_s, "p90_s": lasts_s / 0.3, "basis": "declared limits", "speed": 1.0},
            why_here=why.text,
            said={"why_here": why.said, "detail": detail.said},
        )
        for rank, name in enumerate(node_names):
            node = self.nodes[name]
            part = Part.objects.create(
                attempt=attempt,
                node=node,
                rank=rank,
                epoch=number,
                started_at=start,
                ended_at=end,
                phase=Phase.ENDED if end else Phase.RUNNING,
                exit={"code": exit_code} if end else None,
            )
            chosen = list(
                node.devices.exclude(kind="cpu").filter(claimed_milli=0, health="OK").order_by("index")[:devices]
            )
            if end:
                chosen = list(node.devices.exclude(kind="cpu").order_by("index")[:devices])
            cpu = node.devices.filter(kind="cpu").order_by("claimed_milli").first()
            claims = [
                Claim(part=part, device=d, milli=1000, memory_bytes=d.memory_bytes, opened_at=start, closed_at=end)
                for d in chosen
            ]
            claims.append(
                Claim(
                    part=part, device=cpu, milli=cores * 1000, memory_bytes=cores * GIB, opened_at=start, closed_at=end
                )
            )
            Claim.objects.bulk_create(claims)
        Stage.objects.filter(pk=row.pk).update(attempt_count=number, started_at=row.started_at or start)
        if end:
            Attempt.objects.filter(pk=attempt.pk).update(
                ended_at=end, cause=cause, exit_code=exit_code, detail=detail.text
            )
        return attempt

    def stage(self, key: str, name: str, **fields: Any) -> None:
        Stage.objects.filter(job=self.jobs[key], name=name).update(**fields)

    def finish(self, key: str, state: str, cause: str = "") -> None:
        """Ends the job and each of its stages that had no end yet."""
        job = self.jobs[key]
        last = (
            job.stages.filter(attempts__ended_at__isnull=False)
            .order_by("-attempts__ended_at")
            .values_list("attempts__ended_at", flat=True)
            .first()
        )
        first = (
            job.stages.filter(started_at__isnull=False)
            .order_by("started_at")
            .values_list("started_at", flat=True)
            .first()
        )
        for stage in job.stages.exclude(state__in=["COMPLETED", "FAILED", "CANCELLED"]):
            Stage.objects.filter(pk=stage.pk).update(state=state, cause=cause, ended_at=last)
        Job.objects.filter(pk=job.pk).update(state=state, cause=cause, started_at=first, ended_at=last)

    def run(self, key: str) -> None:
        job = self.jobs[key]
        first = (
            job.stages.filter(started_at__isnull=False)
            .order_by("started_at")
            .values_list("started_at", flat=True)
            .first()
        )
        Job.objects.filter(pk=job.pk).update(state="RUNNING", started_at=first)

    def wait(
        self,
        key: str,
        stage: str,
        code: str,
        text: str,
        *,
        acts: str = "nobody",
        params: dict[str, Any] | None = None,
        start_s: float | None = None,
        **fields: Any,
    ) -> None:
        """A reason to wait, and when it will probably end."""
        at = self.now + timedelta(seconds=start_s or 0)
        expected = {
            "low_at": at.isoformat(),
            "high_at": (at + timedelta(minutes=40)).isoformat(),
            "basis": "declared limits",
        }
        reasons = [{"code": code, "text": text, "params": params or {}, "acts": acts}]
        reasons.append(
            {"code": "PriorityBehind", "text": "2 stages are ahead", "params": {"ahead": 2}, "acts": "nobody"}
        )
        self.stage(
            key,
            stage,
            reasons=reasons,
            evaluated_at=self.now - timedelta(seconds=3),
            waited={"PriorityBehind": 420.0, "QuotaExhausted": 95.0, code: 1260.0},
            waited_at=self.now - timedelta(seconds=3),
            expected=expected if start_s else None,
            **fields,
        )

    def tell(self, key: str, *facts: tuple[float, str, str, str, Told]) -> None:
        """Events: seconds ago, kind, actor, stage, what is said."""
        job = self.jobs[key]
        rows = [
            Event(
                job=job,
                seq=seq,
                at=self.now - timedelta(seconds=ago),
                kind=kind,
                actor=actor,
                stage=stage,
                text=what.text,
                said=what.said,
            )
            for seq, (ago, kind, actor, stage, what) in enumerate(facts, 2)
        ]
        Event.objects.bulk_create(rows)
        Job.objects.filter(pk=job.pk).update(event_seq=len(rows) + 1)

    def curve(self, attempt: Attempt, steps: range, begins: float) -> None:
        """What the attempt reported at these steps: a loss that falls with some noise, and a learning rate."""
        loss, rate = Curve(), Curve()
        for step in steps:
            loss.add(step, round(begins / math.log(step / 300 + 2.6) + self.rng.uniform(-0.03, 0.03), 4))
            rate.add(step, 1.6e-05)
        now = self.now.timestamp()
        marks = [[now - 15 * (39 - i), steps[-1] - 5 * (39 - i)] for i in range(40)]
        Curves.objects.create(attempt=attempt, kept=msgspec.to_builtins({"loss": loss, "lr": rate}), marks=marks)

    def log(self, attempt: Attempt, text: str, stream: str = "out") -> None:
        part = attempt.parts.get(rank=0)
        logs.append([logs.Piece(part.id, stream, logs.size(part, stream), text.encode())])

    def pulse(self) -> None:
        """One more measurement of every device, now."""
        at = timezone.now()
        DeviceSample.objects.bulk_create(
            DeviceSample(device_id=d.id, at=at, **self._sample(d, self._level(d), self.rng.random() * 6))
            for d in Device.objects.select_related("node")
        )

    def _level(self, device: Device) -> float:
        """How busy a device is on the whole: as busy as it is held, but for two that are held and idle."""
        share = device.claimed_milli / device.capacity_milli
        if device.node.name == "g03" and device.kind == "gpu":
            return 0.0
        return share * (0.6 if device.kind == "cpu" else self.rng.uniform(0.62, 0.97))

    def measure(self) -> None:
        """The last quarter of an hour of every device and of every running part."""
        moments = [self.now - timedelta(seconds=s) for s in range(SAMPLED_S, -1, -SAMPLE_S)]
        rows = []
        for device in Device.objects.select_related("node"):
            if device.node.state == "LOST":
                continue
            level = self._level(device)
            swing = self.rng.random() * 6
            rows += [
                DeviceSample(device_id=device.id, at=at, **self._sample(device, level, swing + i / 9))
                for i, at in enumerate(moments)
            ]
        DeviceSample.objects.bulk_create(rows, batch_size=5000)
        parts = [
            PartSample(
                part_id=part.id,
                at=at,
                cpu=6 + math.sin(i / 7) + self.rng.random() / 4,
                rss_bytes=int((31 + i / 40) * GIB),
            )
            for part in Part.objects.filter(phase=Phase.RUNNING)
            for i, at in enumerate(moments)
        ]
        PartSample.objects.bulk_create(parts, batch_size=5000)

    def _sample(self, device: Device, level: float, phase: float) -> dict[str, Any]:
        busy = max(0.0, min(1.0, level * (1 + 0.06 * math.sin(phase) + self.rng.uniform(-0.03, 0.03))))
        return {
            "utilisation": busy,
            "memory_used_bytes": int(
                device.memory_bytes * min(0.92, 0.04 + 0.85 * (device.claimed_milli / device.capacity_milli))
            ),
            "power_w": None if device.kind == "cpu" else 90 + 560 * busy,
            "temperature_c": None if device.kind == "cpu" else 34 + 36 * busy,
        }


class _Silent:
    def write(self, _: str) -> None:
        """Drops what a command says."""

    def flush(self) -> None:
        """Nothing waits."""


def _finetune(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "priority": "high",
        "stages": [
            {"name": "preprocess", "kind": "preprocess", "cpus": 32, "run": "python prep.py", "time_limit": "2h"},
            {
                "name": "load",
                "kind": "load",
                "needs": ["preprocess"],
                "cpus": 16,
                "run": "python load.py",
                "time_limit": "1h",
            },
            {
                "name": "train",
                "kind": "train",
                "needs": ["load"],
                "nodes": 2,
                "devices": {"kind": "gpu", "model": "H100", "count": 8},
                "run": "torchrun train.py",
                "time_limit": "10h",
            },
            {
                "name": "validate",
                "kind": "validate",
                "needs": ["train"],
                "devices": {"kind": "npu", "model": "Ascend 910B", "count": 4},
                "run": "python eval.py",
                "time_limit": "1h",
            },
            {
                "name": "infer",
                "kind": "infer",
                "needs": ["validate"],
                "devices": {"kind": "npu", "count": 1},
                "run": "python serve.py",
                "time_limit": "1h",
            },
        ],
    }


def _one(name: str, *, kind: str = "train", nodes: int = 1, limit: str = "8h", **devices: Any) -> dict[str, Any]:
    stage: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "nodes": nodes,
        "time_limit": limit,
        "cpus": 8,
        "run": "python train.py",
    }
    return {"name": name, "stages": [stage | ({"devices": devices} if devices else {})]}


def plant(nodes: Sequence[str] = ("g01", "g02", "g03", "g04", "a01", "a02", "n01", "n02", "c01")) -> Yard:
    """Writes the whole picture and returns it. The database must be migrated and empty."""
    yard = Yard()
    yard.people()
    yard.fleet(nodes)
    _history(yard)
    _running(yard)
    _waiting(yard)
    _trouble(yard)
    yard.measure()
    _decided(yard)
    _simulated(yard)
    _own_profile(yard)
    _accounted(yard)
    _entitled(yard)
    _scheduled(yard)
    account = service_accounts.create(
        yard.admin, Project.objects.get(name="vision"), "ci", Member.Role.MEMBER, "tests of the main branch"
    )
    make_token(account, "nightly")
    return yard


def _scheduled(yard: Yard) -> None:
    """A schedule that has been followed for a week, and was refused and skipped once."""
    project, user = Project.objects.get(name="vision"), User.objects.get(username="lin.wei")
    row = Schedule.objects.create(
        name="nightly-eval", project=project, user=user, job={"name": "eval", "run": "python eval.py"},
        cron="30 2 * * *", zone="Europe/Berlin", next_at=yard.now + timedelta(hours=9),
    )  # fmt: skip
    for ago, outcome, detail in ((1, "skipped", "job #9 has not ended"), (2, "refused", "/pool: there is no pool x")):
        at = yard.now - timedelta(days=ago)
        ScheduleRun.objects.create(schedule=row, due_at=at, at=at, outcome=outcome, detail=detail)
    for ago in range(3, 8):
        at = yard.now - timedelta(days=ago)
        ScheduleRun.objects.create(schedule=row, due_at=at, at=at, outcome="submitted", number=ago)


def _accounted(yard: Yard) -> None:
    """The ledger of today and yesterday from what there is, and that of a month before, whose jobs have gone."""
    ledger.refresh(yard.now)
    pool, people = Pool.objects.get(name="simulated"), list(User.objects.exclude(username="admin").order_by("id"))
    models = (("gpu", "H100", 16), ("gpu", "MI300X", 12), ("npu", "Ascend 910B", 12), ("cpu", "EPYC 9654", 300))
    entries = []
    for ago in range(2, 30):
        day = yard.now.date() - timedelta(days=ago)
        for number, project in enumerate(Project.objects.order_by("name")):
            for kind, model, most in models:
                hours = most * 24 * yard.rng.uniform(0.05, 0.4) * (0.4 if day.weekday() > 4 else 1.0)
                held = int(hours * 3_600_000)
                entries.append(
                    LedgerEntry(
                        day=day,
                        project=project,
                        user=people[(number + ago) % len(people)],
                        pool=pool,
                        kind=kind,
                        model=model,
                        allocated_ms=held,
                        charged_ms=held if kind != "cpu" else held // 32,
                        known_ms=held * 9 // 10,
                        busy_ms=int(held * yard.rng.uniform(0.3, 0.85)),
                        preempted_ms=held // 60,
                        failed_ms=held // 40,
                        powered_ms=held if kind == "gpu" else 0,
                        millijoules=held * 450 if kind == "gpu" else 0,
                        attempts=yard.rng.randrange(2, 40),
                    )
                )
        LedgerDay.objects.create(day=day, built_at=yard.now, is_due=False)
    LedgerEntry.objects.bulk_create(entries)
    first = yard.now.date() - timedelta(days=365)
    for kind, model, price in (("gpu", "", "1.20"), ("gpu", "H100", "2.80"), ("npu", "", "1.10"), ("cpu", "", "0.03")):
        Price.objects.create(kind=kind, model=model, per_device_hour=price, valid_from=first)


def _entitled(yard: Yard) -> None:
    """Quotas, budgets and limits of the projects, from plenty to used up."""
    projects = list(Project.objects.order_by("name"))
    for number, project in enumerate(projects):
        for kind in ("gpu", "npu"):
            nominal = 6 * (len(projects) - number)
            Quota.objects.create(project=project, kind=kind, cohort="lab", nominal=nominal, borrowing_limit=24)
        Budget.objects.create(
            project=project, kind="gpu", hours=2500 * (number + 1), at_end=("hold", "notify")[number % 2]
        )
    Quota.objects.create(project=projects[0], kind="gpu", model="MI300X", nominal=None)
    Budget.objects.create(project=projects[0], normalised=True, period="quarter", hours=90_000)
    today = yard.now.date()
    first, last = today - timedelta(days=20), today + timedelta(days=70)
    Budget.objects.create(
        project=projects[-1], period="dates", first_day=first, last_day=last, hours=800, at_end="stop"
    )  # fmt: skip
    Limit.objects.create(running=40, waiting=500)
    Limit.objects.create(project=projects[0], devices=16)


def _ended(*said: ends.Clause) -> Told:
    return of_agent(ends.say(said), said)


def _why_here(node_names: Sequence[str], devices: int, lasts_s: float) -> Told:
    """What the engine says of such a place."""
    accelerator, cpu = SHAPES[node_names[0][0]].accelerator, SHAPES[node_names[0][0]].cpu
    got = f"{devices} x {accelerator[2]}" if devices and accelerator else cpu[1]
    if len(node_names) > 1:
        count, names = len(node_names), ", ".join(node_names)
        place = engine_clauses.clause("HereEach", devices=got, count=count, nodes=names)
    else:
        place = engine_clauses.clause("Here", devices=got, node=node_names[0])
    said = (place, engine_clauses.clause("BestFit", among=3), engine_clauses.clause("RunsFor", lasts_s=lasts_s))
    return of_engine(engine_clauses.say(said), said)


def _decided(yard: Yard) -> None:
    """Two cycles on what is true now, written down and never applied; the second has a shadow profile beside it."""
    recorder = Recorder()
    for late in (0.0, 2.0):
        world = LiveStore().load(yard.now.timestamp() + late)
        stages = world.waiting if late else world.waiting[:3]
        world = replace(world, waiting=stages)
        profiles_of = {pool.name: profiles.named(pool.profile) for pool in world.pools}
        plan = engine.plan(world, profiles_of, yard.now.timestamp() + late)
        applied = Applied(tuple(start.stage for start in plan.starts), tuple(one.victim for one in plan.preempts))
        recorder._notes.append(Noted(Cycle(world, plan, applied), 0.0074, yard.now.timestamp() + late))
        rows = recorder.flush()
    Pool.objects.update(shadow_profile="fifo")
    for row in rows:
        shadow.evaluate_shadows(row.pk)
    Pool.objects.exclude(name="default").update(shadow_profile="")


def _own_profile(yard: Yard) -> None:
    """A profile in two versions: the first decides nowhere and was previewed, the second is new."""
    spec = json.loads(json.dumps(profiles.PROFILES["hybrid"]))
    row = own.create("night-shift", spec, by="admin", description=f"Wide jobs first after hours {HOSTILE}")
    first = row.versions.get()
    ProfileVersion.objects.filter(pk=first.pk).update(preview=Simulation.objects.earliest("pk"))
    own.activate(row.versions.get(), by="admin")
    spec["policies"]["preempt"] = {"budget": 2}
    spec["policies"]["power"] = {"weight": 2.0}
    del spec["policies"]["hot_nodes"]
    own.revise(row, spec | {"depth": 400}, by="admin", note="two preemptions at most, and less power")


def _simulated(yard: Yard) -> None:
    """A small simulation that is done."""
    row = Simulation.objects.create(
        user=User.objects.get(username="admin"),
        name="hybrid or first come",
        source="generate",
        scenario={
            "name": "hybrid or first come",
            "trace": {"generate": {"jobs": 60, "per_hour": 40, "seed": 4}},
            "world": {"nodes": "4x8", "error": 0.3},
            "profiles": ["hybrid", "fifo"],
            "loads": [1.0, 1.5],
            "seeds": [0],
        },
    )
    worker.run(row.pk)


def _history(yard: Yard) -> None:
    for key, user, node, devices, start, end in (
        ("vlm-warmup", "lin.wei", "g01", 8, 26_000, 15_500),
        ("dpo-a", "ma.jun", "g03", 8, 25_000, 18_000),
        ("asr-base", "chen.yu", "n01", 8, 24_000, 9_000),
        ("tts-base", "chen.yu", "a01", 8, 22_000, 12_500),
        ("seg-pretrain", "lin.wei", "g04", 8, 21_000, 7_600),
        ("ocr-large", "ma.jun", "a02", 4, 19_000, 8_400),
    ):
        yard.submit(key, user, start + 300, _one(key, count=devices, model=SHAPES[node[0]].accelerator[2]))  # type: ignore[index]
        yard.attempt(key, _only(yard, key), [node], devices, start, end, exit_code=0)
        yard.finish(key, "COMPLETED")
    out_of_memory = _ended(ends.clause("MemoryOver", used_bytes=65 << 30, asked_bytes=64 << 30))
    yard.submit("clip-ft", "chen.yu", 15_000, _one("clip-ft", count=4, model="H100"))
    killed = yard.attempt(
        "clip-ft",
        _only(yard, "clip-ft"),
        ["g03"],
        4,
        14_800,
        11_200,
        cause="OUT_OF_MEMORY",
        exit_code=137,
        detail=out_of_memory,
    )
    yard.log(killed, "epoch 1\n")
    yard.log(killed, "\x1b[33mUserWarning\x1b[0m: 64 data workers on 8 cores\nKilled\n", "err")
    yard.stage(
        "clip-ft",
        _only(yard, "clip-ft"),
        detail=out_of_memory.text,
        said=out_of_memory.said,
        exit_code=137,
    )
    yard.finish("clip-ft", "FAILED", "OUT_OF_MEMORY")
    yard.submit("probe", "ma.jun", 6_000, _one("probe-run", limit="1h", count=2, model="H100"))
    yard.attempt("probe", _only(yard, "probe"), ["g03"], 2, 5_900, 5_200, cause="CANCELLED")
    yard.finish("probe", "CANCELLED", "CANCELLED")


def _placed(stage: str, node_names: Sequence[str], devices: int, lasts_s: float) -> Told:
    return told(clause("Placed", stage=stage, why=_why_here(node_names, devices, lasts_s)))


def _only(yard: Yard, key: str) -> str:
    """The name of the single stage of a job."""
    return str(yard.jobs[key].stages.get().name)


def _running(yard: Yard) -> None:
    yard.submit("sft", "lin.wei", 12_400, _finetune("qwen3-32b-sft"))
    yard.attempt("sft", "preprocess", ["c01"], 0, 12_300, 9_900, exit_code=0, cores=32)
    yard.attempt("sft", "load", ["g01"], 0, 9_800, 9_300, exit_code=0, cores=16)
    for name, ago in (("preprocess", 9_900), ("load", 9_300)):
        yard.stage("sft", name, state="COMPLETED", exit_code=0, ended_at=yard.now - timedelta(seconds=ago))
    first = yard.attempt("sft", "train", ["g01", "g02"], 8, 9_200, 7_300, cause="PREEMPTED", cores=16)
    train = yard.attempt("sft", "train", ["g01", "g02"], 8, 7_000, cores=16, lasts_s=15_900)
    yard.curve(first, range(1, 1400, 5), 2.4)
    yard.curve(train, range(900, 3941, 5), 2.4)
    for attempt, since, until in ((first, 9_200, 7_300), (train, 7_000, 0)):
        stage = attempt.stage
        Checkpoint.objects.bulk_create(
            Checkpoint(
                stage=stage,
                attempt=attempt,
                step=100 * i + (0 if attempt == first else 900),
                path=f"/shared/12/train/checkpoints/step-{i}",
                at=yard.now - timedelta(seconds=ago),
            )
            for i, ago in enumerate(range(int(since) - 700, int(until), -700), 1)
        )
    yard.stage(
        "sft",
        "train",
        state="RUNNING",
        preemptions=1,
        progress={"step": 3940, "total": 9000, "phase": "update"},
        values={"loss": 0.8709, "lr": 1.6e-05, "tokens_per_s": 41_600},
    )
    yard.wait("sft", "validate", "DependencyPending", "waits for train", params={"stages": "train"}, start_s=14_000)
    yard.wait("sft", "infer", "DependencyPending", "waits for validate", params={"stages": "validate"})
    yard.run("sft")
    lines = [
        f"step {s} | loss {2.4 / math.log(s / 300 + 2.6):.4f} | lr 1.62e-05 | {41.6 + s % 7 / 10:.1f}k tok/s"
        for s in range(900, 3941, 5)
    ]
    lines[40] = "\x1b[33mwarning:\x1b[0m data worker 3 took 1.9 s (median 0.4 s); shard 0417 on slow path"
    lines[-3] = f"evaluating {HOSTILE} & <b>not bold</b>"
    yard.log(train, "\n".join(lines) + "\n")
    yard.log(train, "\x1b[31mNCCL WARN\x1b[0m NET/IB : no RDMA device found, falling back to sockets\n", "err")
    verdict = retry.decide("PREEMPTED", 1, 1, preemptions=1)
    yard.tell(
        "sft",
        (12_300, "placed", "engine", "preprocess", _placed("preprocess", ["c01"], 0, 2_500)),
        (9_900, "completed", "agent", "preprocess", told(clause("Completed", stage="preprocess"))),
        (9_200, "placed", "engine", "train", _placed("train", ["g01", "g02"], 8, 15_900)),
        (7_330, "stop", "engine", "train", told(clause("AskedToStop", stage="train", cause="PREEMPTED"))),
        (
            7_300,
            "requeue",
            "agent",
            "train",
            told(
                clause("EndedAfter", stage="train", cause="PREEMPTED", ran_s=1_896),
                clause("Detail", detail=_ended(ends.clause("Signal", signal="SIGTERM"))),
                clause("Then", what=of_engine(verdict.why, verdict.said)),
            ),
        ),
        (7_000, "placed", "engine", "train", _placed("train", ["g01", "g02"], 8, 15_900)),
    )
    for key, user, node, devices, ago, step in (
        ("moe", "ma.jun", "g04", 6, 5_400, 0.61),
        ("diffusion", "chen.yu", "n01", 8, 4_300, 0.34),
        ("rerank", "lin.wei", "a01", 4, 2_500, 0.82),
        ("hold-idle", "chen.yu", "g03", 2, 3_900, 0.1),
    ):
        yard.submit(
            key,
            user,
            ago + 200,
            _one(
                {"moe": "moe-router", "diffusion": "diffusion-npu", "rerank": "rerank-ft", "hold-idle": "notebook-7b"}[
                    key
                ],
                count=devices,
                model=SHAPES[node[0]].accelerator[2],
            ),
        )  # type: ignore[index]
        yard.attempt(key, _only(yard, key), [node], devices, ago)
        yard.stage(
            key,
            _only(yard, key),
            state="RUNNING",
            progress={"step": int(step * 5000), "total": 5000, "phase": ""},
            values={"loss": round(2.2 - step, 4)},
        )
        yard.run(key)
    yard.submit("starting", "ma.jun", 40, _one("yolo-port", count=2, model="Ascend 910B"))
    starting = yard.attempt("starting", _only(yard, "starting"), ["n02"], 2, 12, lasts_s=2_900)
    Attempt.objects.filter(pk=starting.pk).update(started_at=None)
    yard.stage("starting", _only(yard, "starting"), state="STARTING")
    yard.run("starting")


def _waiting(yard: Yard) -> None:
    yard.submit("llama", "lin.wei", 4_300, _one("llama-pretrain-v4", nodes=2, limit="24h", count=8, model="H100"))
    yard.wait(
        "llama",
        _only(yard, "llama"),
        "CapacityInsufficient",
        "needs 2 nodes x 8 H100; the largest free share of a node is 6 H100",
        acts="nobody",
        params={"asks": "2 nodes x 8 H100", "free": "6 H100"},
        start_s=9_000,
        funnel=[
            ["FunnelAll", 9],
            ["FunnelInPool", 9],
            ["FunnelMatching", 4],
            ["FunnelReady", 4],
            ["FunnelEnoughFree", 0],
        ],
    )
    g01 = yard.nodes["g01"].devices.filter(kind="gpu").values_list("id", flat=True)
    g02 = yard.nodes["g02"].devices.filter(kind="gpu").values_list("id", flat=True)
    start = yard.now + timedelta(seconds=9_000)
    yard.stage(
        "llama",
        _only(yard, "llama"),
        planned={
            "start_at": start.isoformat(),
            "end_at": (start + timedelta(hours=6)).isoformat(),
            "devices": [str(each) for each in (*g01, *g02)],
        },
    )
    yard.submit("asr", "chen.yu", 2_100, _one("asr-distill", count=8, model="Ascend 910B", limit="4h"))
    yard.wait(
        "asr",
        _only(yard, "asr"),
        "QuotaExhausted",
        "project speech holds 16 of 16 npu and may borrow 0 more",
        acts="lead",
        params={"project": "speech", "held": 16, "nominal": 16, "kind": "npu", "borrow": 0},
        start_s=3_000,
    )
    n02 = yard.nodes["n02"].devices.filter(kind="npu").values_list("id", flat=True)
    begin = yard.now + timedelta(seconds=3_000)
    yard.stage(
        "asr",
        _only(yard, "asr"),
        planned={
            "start_at": begin.isoformat(),
            "end_at": (begin + timedelta(hours=3)).isoformat(),
            "devices": [str(each) for each in n02],
        },
    )
    yard.submit("held", "ma.jun", 1_500, {**_one("speech-tts-ft", count=4, model="MI300X"), "hold": True})
    yard.wait("held", _only(yard, "held"), "Held", "on hold by ma.jun", acts="user or admin", params={"who": "ma.jun"})
    yard.submit("hostile", "ma.jun", 900, _one("named-by-hand", kind="generic"))
    # A job file could not name it so; a row that came in some other way could.
    Job.objects.filter(pk=yard.jobs["hostile"].pk).update(name=HOSTILE, labels={"note": HOSTILE})
    yard.wait("hostile", _only(yard, "hostile"), "PendingEvaluation", "not yet looked at")


def _noted(*said: ends.Clause) -> Told:
    note = NoteText(*said)
    return of_agent(str(note), note.said)


def _trouble(yard: Yard) -> None:
    for card, health, why in (
        ("a02-gpu5", "UNHEALTHY", _noted(ends.clause("EccUncorrected", count=3))),
        ("a02-gpu6", "DEGRADED", _noted(ends.clause("PcieWidth", lanes=8, most=16))),
    ):
        Device.objects.filter(uuid=card).update(health=health, health_reason=why.text, health_said=why.said)
    Node.objects.filter(name="c01").update(state="DRAINING", reason="firmware 2.11, ticket 4182")
    full = _noted(ends.clause("NearlyFull", mount="/var", size_gib=894, percent=3))
    Node.objects.filter(name="n02").update(conditions={"notes": [full.text], "notes_said": [full.said]})
