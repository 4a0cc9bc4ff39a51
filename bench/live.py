"""The live loop on real PostgreSQL: from the commit of a submit, an end or a node's change to the placement's commit.

Every GPU is held, and ten stages wait for each node: forty projects, four classes, five shapes. The loop is that of the
scheduler's worker, in this process: everything that a cycle reads, plans and writes counts; the way of the wake through
Valkey and Celery, which ``./script/bench latency`` includes, does not. One event at a time, on an idle loop.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents.protocol import Exit, Here, InventoryRef, Phase, Report
from bench.figures import Figures, quantile
from deploy.local.home import new_secrets_key, write_private
from deploy.local.postgres import Cluster
from deploy.local.service import Service, stop_all
from deploy.local.valkey import Broker

NODES, GPUS, WAITING_PER_NODE, PROJECTS, EVENTS = 10_000, 8, 10, 40, 30
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "AMD Instinct MI300X")
CLASSES = {"urgent": 1000, "high": 750, "medium": 500, "low": 250}
# The sizes of what runs on one node; together they fill it.
FILLINGS = ([8], [4, 4], [4, 2, 1, 1], [1] * 8)
# How many devices, on how many nodes, and of which model.
SHAPES: tuple[dict[str, Any], ...] = (
    {"devices": {"kind": "gpu"}},
    {"devices": {"kind": "gpu", "count": 2}, "time_limit": "4h"},
    {"devices": {"kind": "gpu", "count": 4, "model": MODELS[0]}},
    {"devices": {"kind": "gpu", "count": 8}},
    {"devices": {"kind": "gpu", "count": 8}, "nodes": 4, "time_limit": "12h"},
)
GIB = 2**30


def measure(nodes: int = NODES) -> Figures:
    """Return ``live_submit_p95_ms``, ``live_end_p95_ms`` and ``live_node_p95_ms``, which end with the commit of
    what was placed, their P50s, the P95 of the whole cycles with the words for some who wait, and ``live_full_s``."""
    with fresh_database():
        return _measure(nodes)


@contextmanager
def fresh_database() -> Iterator[None]:
    """Start PostgreSQL (fsync on) and Valkey in a temporary folder, and set Django up on them."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    sockets = folder / "run"
    sockets.mkdir(mode=0o700)
    cluster, broker = Cluster(folder / "postgres", sockets, folder), Broker(folder, sockets, folder)
    broker.make_password()
    write_private(folder / "django.key", "a key of sixty characters that signs nothing outside of a measure")
    write_private(folder / "secrets.keys", new_secrets_key())
    for name in [name for name in os.environ if name.startswith("YARD_")]:
        del os.environ[name]
    os.environ |= {
        "DATABASE_URL": cluster.url,
        **broker.environment,
        "YARD_HOME": str(folder),
        "YARD_SECRET_KEY_FILE": str(folder / "django.key"),
        "YARD_SECRETS_KEY_FILE": str(folder / "secrets.keys"),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    environment, started = dict(os.environ), []
    try:
        valkey = broker.service(environment, folder / "valkey.log")
        started.append(_ready(valkey, broker.is_ready))
        user = cluster.make(environment)
        started.append(_ready(cluster.service(user, environment, folder / "postgres.log"), cluster.is_ready))
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield
    finally:
        stop_all(started, 15)
        shutil.rmtree(folder, ignore_errors=True)


def _ready(service: Service, is_ready: Callable[[], bool]) -> Service:
    service.start()
    while not is_ready():
        if service.ended() is not None:
            raise SystemExit(f"{service.name} did not start:\n{service.last_lines(20)}")
        time.sleep(0.02)
    return service


def _measure(nodes: int) -> Figures:
    from controlplane.fleet import service as fleet
    from controlplane.jobs import service
    from controlplane.jobs.models import Stage
    from controlplane.scheduling import loop

    cluster = Filled(nodes)
    waiting = Stage.objects.filter(state="PENDING").count()
    print(f"{nodes} nodes, {nodes * GPUS} GPUs, {len(cluster.going)} running, {waiting} waiting", flush=True)
    first_s = _timed(loop.cycle)
    _settle()
    importlib.reload(loop)  # what a new process knows: nothing
    placed = _Placed(loop._store)
    full_s = _timed(loop.cycle)
    _settle()

    sent: list[Any] = []

    def submit() -> None:
        job = service.submit({"name": "event", "run": "true", "project": "project-0", **SHAPES[0]}, cluster.user)
        sent.append(job.id)

    drained: list[Any] = []

    def change() -> None:
        if drained:
            fleet.resume(drained.pop(), "bench")
        else:
            drained.append(fleet.drain(cluster.dice.choice(cluster.nodes), "bench", "a measurement"))

    values: dict[str, float | int] = {}
    remarks = [f"the first cycle of all: {first_s:.1f} s"]
    for name, event in (("submit", submit), ("end", cluster.end), ("node", change)):
        before, record_s = _attempts(), 0.0
        samples, wholes = [], []
        for _ in range(EVENTS):
            event()
            began = time.perf_counter()
            wholes.append(_timed(loop.cycle) * 1000)
            samples.append((placed.at - began) * 1000)
            record_s += _settle()
        values[f"live_{name}_p95_ms"] = quantile(samples, 0.95)
        values[f"live_{name}_p50_ms"] = quantile(samples, 0.5)
        values[f"live_{name}_cycle_p95_ms"] = quantile(wholes, 0.95)
        remarks.append(
            f"{name}: {len(samples)} events, {_attempts() - before} stages begun; "
            f"writing down a decision, beside the loop: {record_s / EVENTS * 1000:.0f} ms on average"
        )
    for timer in loop._timers.values():
        timer.cancel()
    told = Stage.objects.filter(state="PENDING").exclude(reasons=[]).count()
    remarks.append(f"{told} of those that wait were told why by then, in every cycle some of them")
    answered = Stage.objects.filter(job__in=sent).exclude(state="PENDING", reasons=[]).count()
    if answered < len(sent):
        raise SystemExit(f"only {answered} of {len(sent)} submits were answered: the figures would be of nothing")
    return Figures({**values, "live_full_s": full_s, "nodes": nodes, "waiting": waiting}, remarks)


class _Placed:
    """Notes when a store had last made a plan true."""

    def __init__(self, store: Any) -> None:
        self.at = 0.0
        self._apply = store.apply
        store.apply = self.apply

    def apply(self, *args: Any) -> Any:
        done = self._apply(*args)
        self.at = time.perf_counter()
        return done


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _settle() -> float:
    """Let the record be written and the loop's own pause pass; return how long the record took."""
    from controlplane.scheduling import loop
    from controlplane.scheduling.recorder import recorder

    def write() -> None:
        recorder.flush()

    took_s = _timed(write)
    time.sleep(min(1.0, loop._last_s))
    return took_s


def _attempts() -> int:
    from controlplane.jobs.models import Attempt

    return int(Attempt.objects.count())


class Filled:
    """A full cluster with a queue, in bulk: the same rows as services write, from one submit of each shape."""

    def __init__(self, nodes: int) -> None:
        from django.utils import timezone

        from controlplane.accounts.models import Project, User
        from controlplane.pools.models import Pool, PriorityClass

        self.dice, self.now = random.Random(7), timezone.now()
        self.user = User.objects.create(username="ada", is_staff=True, is_superuser=True)
        self.pool = Pool.objects.create(name="default", storage_path="/shared")
        self.projects = [Project.objects.create(name=f"project-{i}") for i in range(PROJECTS)]
        for name, value in CLASSES.items():
            PriorityClass.objects.create(name=name, value=value)
        self._numbers = itertools.count(1)
        self._reports = itertools.count(1)
        self.nodes, cards, cpus = self._fleet(nodes)
        requests = self._requests()
        self._wait(requests, nodes * WAITING_PER_NODE)
        self.going = self._run(requests, cards, cpus)
        self._count_and_analyse()

    def end(self) -> None:
        """One stage that runs ends well, as its node reports it."""
        from controlplane.jobs import record

        part = self.going.pop(self.dice.randrange(len(self.going)))
        here = Here(
            part=str(part.id), attempt=str(part.attempt_id), epoch=1, phase=Phase.ENDED, pid=1, exit=Exit(code=0)
        )
        report = Report(
            proto=1,
            agent="1.0.0",
            boot_id="boot",
            start_seq=1,
            seq=next(self._reports),
            seen_generation=0,
            inventory=InventoryRef(hash="inventory"),
            here=[here, *(_here(one) for one in self._beside(part))],
        )
        record.report(part.node_id, report)

    def _beside(self, part: Any) -> Iterable[Any]:
        from controlplane.jobs.models import Part

        return Part.objects.filter(node=part.node_id, ended_at=None).exclude(id=part.id)

    def _fleet(self, count: int) -> tuple[list[Any], dict[Any, list[Any]], dict[Any, Any]]:
        """Nodes in racks of forty, each with a CPU and its GPUs."""
        from controlplane.fleet.models import Device, Node

        nodes = [
            Node(
                name=f"n{i:05}",
                state="READY",
                credential_digest=f"{i:064}",
                labels={"rack": f"r{i // 40:03}"},
                boot_id="boot",
                start_seq=1,
                inventory_hash="inventory",
                last_report_at=self.now,
                good_reports=3,
            )
            for i in range(count)
        ]
        Node.objects.bulk_create(nodes, batch_size=1000)
        link = Node.pools.through
        link.objects.bulk_create([link(node_id=n.id, pool_id=self.pool.pk) for n in nodes], batch_size=5000)
        cpus = {
            node.id: Device(
                node=node,
                uuid=f"cpu-{node.name}",
                kind="cpu",
                vendor="GenuineIntel",
                model="Xeon",
                index=0,
                memory_bytes=1024 * GIB,
                capacity_milli=128_000,
            )
            for node in nodes
        }
        cards = {
            node.id: [
                Device(
                    node=node,
                    uuid=f"gpu-{node.name}-{g}",
                    kind="gpu",
                    vendor="AMD" if "AMD" in MODELS[i * len(MODELS) // count] else "NVIDIA",
                    model=MODELS[i * len(MODELS) // count],
                    index=g,
                    memory_bytes=80 * GIB,
                    mode="exclusive",
                )
                for g in range(GPUS)
            ]
            for i, node in enumerate(nodes)
        }
        Device.objects.bulk_create([*cpus.values(), *itertools.chain(*cards.values())], batch_size=1000)
        return nodes, cards, cpus

    def _requests(self) -> list[dict[str, Any]]:
        """What the control plane makes of each shape; the jobs that were asked for it are gone again."""
        from controlplane.jobs import service
        from controlplane.jobs.models import Job, Stage

        spec = {"name": "shape", "run": "true", "project": "project-0"}
        jobs = [service.submit({**spec, **shape}, self.user) for shape in SHAPES]
        requests = [dict(Stage.objects.get(job=job).request) for job in jobs]
        Job.objects.filter(id__in=[job.id for job in jobs]).delete()
        return requests

    def _rows(self, count: int, state: str, request: Callable[[int], dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        """Jobs of one stage each."""
        from controlplane.jobs.models import Job, Stage

        names, jobs, stages = list(CLASSES), [], []
        for i in range(count):
            # Most of what people send is of their class; the names are of families that come again.
            chosen = self.dice.choices(names, (1, 4, 12, 3))[0]
            at = self.now - timedelta(seconds=self.dice.uniform(60, 86_400))
            job = Job(
                number=next(self._numbers) + 1_000,
                name=f"family-{self.dice.randrange(200)}",
                project=self.projects[self.dice.randrange(PROJECTS)],
                user=self.user,
                pool=self.pool,
                priority_class=chosen,
                priority=CLASSES[chosen],
                state=state,
                spec={"name": "bench"},
                submitted_at=at,
            )
            stage = Stage(job=job, index=0, name="main", kind="train", state=state, state_at=at, request=request(i))
            stage.eligible_at = at
            if state == "RUNNING":
                job.started_at = stage.started_at = self.now
                # Stopped as often as a profile allows: what waits, waits for ends.
                stage.attempt_count, stage.preemptions = 1, 100
            jobs.append(job)
            stages.append(stage)
        Job.objects.bulk_create(jobs, batch_size=1000)
        Stage.objects.bulk_create(stages, batch_size=1000)
        return jobs, stages

    def _wait(self, requests: list[dict[str, Any]], count: int) -> None:
        chances = self.dice.choices(range(len(requests)), (10, 4, 3, 3, 1), k=count)
        self._rows(count, "PENDING", lambda i: requests[chances[i]])

    def _run(self, requests: list[dict[str, Any]], cards: dict[Any, list[Any]], cpus: dict[Any, Any]) -> list[Any]:
        """Fill every GPU; return the parts."""
        from controlplane.jobs.models import Attempt, Claim, Part

        by_size = {1: requests[0], 2: requests[1], 4: requests[2], 8: requests[3]}
        sizes = [(node, size) for i, node in enumerate(self.nodes) for size in FILLINGS[i % 4]]
        _, stages = self._rows(len(sizes), "RUNNING", lambda i: by_size[sizes[i][1]])
        attempts, parts, claims = [], [], []
        free = {node: list(devices) for node, devices in cards.items()}
        for (node, size), stage in zip(sizes, stages, strict=True):
            # An agent stops what has run for its time limit.
            p50_s = min(self.dice.uniform(600, 86_400), stage.request["time_limit_s"] or 86_400)
            began = self.now - timedelta(seconds=self.dice.uniform(0, p50_s))
            estimate = {"p50_s": p50_s, "p90_s": 2 * p50_s, "basis": "declared limits", "speed": 1.0}
            attempts.append(Attempt(stage=stage, number=1, estimate=estimate, created_at=began, started_at=began))
            part = Part(attempt=attempts[-1], node=node, phase=Phase.RUNNING, started_at=began, pid=1)
            parts.append(part)
            taken, free[node.id] = free[node.id][:size], free[node.id][size:]
            claims += [
                Claim(part=part, device=d, milli=1000, memory_bytes=d.memory_bytes, opened_at=began) for d in taken
            ]
            claims.append(Claim(part=part, device=cpus[node.id], milli=size * 1000, memory_bytes=GIB, opened_at=began))
        Attempt.objects.bulk_create(attempts, batch_size=1000)
        Part.objects.bulk_create(parts, batch_size=1000)
        Claim.objects.bulk_create(claims, batch_size=1000)
        return parts

    def _count_and_analyse(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT setval('jobs_job_number', %s)", [next(self._numbers) + 2_000])
            cursor.execute("ANALYZE")


def _here(part: Any) -> Here:
    return Here(part=str(part.id), attempt=str(part.attempt_id), epoch=1, phase=Phase.RUNNING, pid=1)
