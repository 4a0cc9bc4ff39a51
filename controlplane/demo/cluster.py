"""Writes the rows of a simulated cluster: machines, people, and what became of their jobs.

Jobs come in by the same submission as everywhere; what then became of them is written directly, because it lies in the
past. Every node and device is marked as simulated.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import call_command
from django.utils import timezone

from agents.protocol import Phase
from controlplane.accounts.models import Member, Project, User
from controlplane.clauses import Told, clause, of_engine, told
from controlplane.fleet.models import Device, DeviceSample, Node, NodeLink, PartSample
from controlplane.jobs import logs, service
from controlplane.jobs.curves import Curve
from controlplane.jobs.models import Attempt, Bundle, Claim, Curves, Event, GitSource, Job, Part, Stage
from controlplane.pools.models import Pool
from scheduler.core.model import clauses as engine_clauses

GIB = 2**30
SAMPLE_S, SAMPLED_S = 3, 960
# What a stage with accelerators holds of the disk of each node.
DISK_EACH_BYTES = 200 * GIB
DATA = "/data"
"""A folder that the nodes have and the pool lets jobs mount."""
HOSTILE = '<img src=x onerror="alert(1)">'


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

# What devices declare: dense peak rates, GB/s of memory and watts, about as in the makers' data sheets.
FEATURES: dict[str, dict[str, float]] = {
    "H100": {"bf16_tflops": 989, "fp8_tflops": 1979, "memory_gbps": 3350, "watts": 700},
    "MI300X": {"bf16_tflops": 1307, "fp8_tflops": 2615, "memory_gbps": 5300, "watts": 750},
    "Ascend 910B": {"bf16_tflops": 313, "int8_tops": 626, "memory_gbps": 1600, "watts": 400},
    "Xeon Platinum 8480C": {"memory_gbps": 307, "watts": 350},
    "EPYC 9654": {"memory_gbps": 461, "watts": 360},
    "Kunpeng 920": {"memory_gbps": 187, "watts": 180},
    "Core i9-13900K": {"memory_gbps": 90, "watts": 253},
}

# Where some of the machines stand; the others have no labels.
LABELS = {
    name: {"zone": "a", "rack": f"r{number}", "link-gbps": "400"}
    for number, names in enumerate((("g01", "g02"), ("g03", "g04"), ("n01", "n02")), 1)
    for name in names
}
# From which node to which, in Gbit/s; that of g03 to g04 has a bad cable.
MEASURED = (
    ("g01", "g02", 181.0), ("g02", "g01", 181.0), ("g03", "g04", 22.6), ("g04", "g03", 181.0), ("g01", "g03", 90.5),
    ("g02", "g04", 90.5), ("n01", "n02", 128.0), ("n02", "n01", 128.0), ("g01", "n01", 45.3),
)  # fmt: skip
FAST = {"nvidia": ("NVLINK", 900.0), "amd": ("XGMI", 128.0), "huawei": ("HCCS", 56.0)}


def _links(node: str, shape: Shape, index: int) -> list[dict[str, Any]]:
    """The links of an accelerator: fast ones to all others of its node."""
    assert shape.accelerator is not None
    kind, vendor, _model, _memory = shape.accelerator
    fast, gbps = FAST[vendor]
    peers = (f"{node}-{kind}{other}" for other in range(shape.count) if other != index)
    return [{"peer": peer, "type": fast, "gbps": gbps} for peer in peers] + [
        {"peer": "host", "type": "PCIE", "gbps": 64.0}
    ]


class DemoCluster:
    """The rows by name. ``now`` is the moment that they show, ``written`` a word of users in names, notes and logs."""

    def __init__(self, seed: int, written: str) -> None:
        self.now = timezone.now()
        self.rng = random.Random(seed)
        self.written = written
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}

    # -- what there is

    def people(self, password: str | None) -> None:
        call_command("bootstrap", "--no-tokens", verbosity=0, stdout=_Silent())
        self.admin = User.objects.get(username="admin")
        if password is not None:
            self.admin.set_password(password)
            self.admin.save()
        for name, project in (
            ("lin.wei", "vision"),
            ("chen.yu", "speech"),
            ("ma.jun", "vision"),
            ("stranger", "other"),
        ):
            team, _ = Project.objects.get_or_create(name=project)
            user = User.objects.create_user(name, password=password, default_project=team)
            Member.objects.create(project=team, user=user, role=Member.Role.MEMBER)

    def fleet(self, names: Sequence[str]) -> None:
        pool = Pool.objects.get(name="simulated")
        Pool.objects.filter(pk=pool.pk).update(mounts=[{"path": DATA, "writable": False}])
        for name in names:
            self.node(name, SHAPES[name[0]], pool)
        self.links()
        self.node("workstation", Shape(None, 0, 1, ("intel", "Core i9-13900K"), 24), Pool.objects.get(name="default"))

    def links(self) -> None:
        """What nodes measured of each other: usual bandwidths in a rack, slower ones across, and a bad cable."""
        for source, target, gbps in MEASURED:
            if not {source, target} <= self.nodes.keys():
                continue
            at = self.now - timedelta(minutes=self.rng.randint(2, 300))
            NodeLink.objects.create(
                source=self.nodes[source], target=self.nodes[target], gbps=gbps, mean_gbps=gbps, at=at
            )

    def node(self, name: str, shape: Shape, pool: Pool) -> None:
        node = Node.objects.create(
            name=name,
            state="READY",
            credential_digest=self.rng.randbytes(32).hex(),
            simulated=True,
            agent_version="0.1.0",
            runs_as="uid 65534 (nobody)",
            isolation="none (simulated)",
            hostname=name,
            os="Debian GNU/Linux 12",
            arch="aarch64" if shape.cpu[0] == "huawei" else "x86_64",
            memory_bytes=shape.sockets * 512 * GIB,
            disk_total_bytes=shape.sockets * 1792 * GIB,
            # A sixteenth of it is used by other things than stages.
            disk_bytes=shape.sockets * 1680 * GIB,
            network_mbps=12_500 if shape.accelerator else 3_125,
            last_report_at=self.now,
            labels=LABELS.get(name, {}),
            mounts=[DATA],
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
                features=FEATURES[shape.cpu[1]],
                simulated=True,
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
                    numa=index * shape.sockets // shape.count,
                    link_group=0,
                    links=_links(name, shape, index),
                    features=FEATURES[model],
                    simulated=True,
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

    def fetch(self, key: str, ago_s: float) -> None:
        """A worker fetched the code of a job from its git repository, ``ago_s`` seconds ago: a commit of one file."""
        job, content = self.jobs[key], b"print('step 1')\n"
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            entry = tarfile.TarInfo("train.py")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        bundle = hashlib.sha256(packed.getvalue()).hexdigest()
        storages["bundles"].save(Bundle.place(bundle), ContentFile(packed.getvalue()))
        Bundle.objects.create(sha256=bundle, size_bytes=len(packed.getvalue()), user=job.user)
        source = job.source
        assert source is not None
        service.give_code(source, hashlib.sha256(source.url.encode()).hexdigest()[:40], bundle)
        at = self.now - timedelta(seconds=ago_s)
        GitSource.objects.filter(pk=source.pk).update(created_at=job.submitted_at, ended_at=at)
        told_now = job.events.get(kind="source")
        job.events.filter(pk=told_now.pk).delete()  # events are never changed
        told_now.at = at
        told_now.save(force_insert=True)

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
        first: int = 0,
        lasts_s: float = 0.3 * 8 * 3600,
    ) -> Attempt:
        """One try of a stage, from ``start_s`` to ``end_s`` seconds ago; None where it runs still. One that has ended
        held ``devices`` of each node from number ``first`` on.

        ``lasts_s`` is for how long it was foreseen to run when it was placed.
        """
        row = self.jobs[key].stages.get(name=stage)
        start = self.now - timedelta(seconds=start_s)
        end = None if end_s is None else self.now - timedelta(seconds=end_s)
        number = row.attempts.count() + 1
        why = why_here(node_names, devices, lasts_s)
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
                disk_bytes=DISK_EACH_BYTES if devices else 0,
                exit={"code": exit_code} if end else None,
            )
            chosen = list(
                node.devices.exclude(kind="cpu").filter(claimed_milli=0, health="OK").order_by("index")[:devices]
            )
            if end:
                chosen = list(node.devices.exclude(kind="cpu").order_by("index")[first : first + devices])
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
        assert last is not None, "a job that ends had an attempt"
        what = told(clause("JobState", job=str(job), state=state))
        self.tell(key, ((self.now - last).total_seconds(), state.lower(), "engine", "", what))

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
            for seq, (ago, kind, actor, stage, what) in enumerate(facts, job.event_seq + 1)
        ]
        Event.objects.bulk_create(rows)
        job.event_seq += len(rows)
        Job.objects.filter(pk=job.pk).update(event_seq=job.event_seq)

    def curve(self, attempt: Attempt, steps: range, begins: float) -> None:
        """What the attempt reported at these steps: a loss that falls with some noise, and a learning rate."""
        loss, rate = Curve(), Curve()
        for step in steps:
            loss.add(step, round(begins / math.log(step / 300 + 2.6) + self.rng.uniform(-0.03, 0.03), 4))
            rate.add(step, 1.6e-05)
        now = self.now.timestamp()
        marks = [[now - 15 * (39 - i), steps[-1] - 5 * (39 - i)] for i in range(40)]
        Curves.objects.create(attempt=attempt, kept=msgspec.to_builtins({"loss": loss, "lr": rate}), marks=marks)

    def log(self, attempt: Attempt, text: str, stream: str = "out", rank: int = 0) -> None:
        part = attempt.parts.get(rank=rank)
        logs.append([logs.Piece(part.id, stream, logs.size(part, stream), text.encode())])

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


def why_here(node_names: Sequence[str], devices: int, lasts_s: float) -> Told:
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
