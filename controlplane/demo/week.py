"""The days before today of the simulated cluster: jobs that ran one after the other on each node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from controlplane.clauses import Told, clause, told
from controlplane.demo.cluster import GIB, SHAPES, DemoCluster
from controlplane.demo.today import one, only, placed
from controlplane.jobs.models import Claim
from controlplane.usage.days import begin_of, day_of
from controlplane.usage.models import ClaimMeter

DAY_S: Final = 86_400.0
# What today's jobs need free, in seconds ago.
TODAY_S: Final = 30_000.0
NAMES: Final = (
    ("lin.wei", ("qwen3-8b-sft", "vlm-base", "seg-ft", "ocr-eval", "reward-model")),
    ("chen.yu", ("asr-ctc", "tts-vits", "wav2vec-ft", "denoise", "whisper-distil")),
    ("ma.jun", ("dpo-sweep", "moe-ablation", "retriever-ft", "lora-batch", "yolo-port")),
    ("stranger", ("protein-fold", "ligand-dock")),
)
# How often a job ends so, of 100, and with which exit code.
ENDS: Final = (
    (78, "", 0),
    (6, "EXIT_CODE", 1),
    (4, "OUT_OF_MEMORY", 137),
    (3, "TIMEOUT", None),
    (2, "DEVICE_ERROR", None),
    (7, "CANCELLED", None),
)
WAITS: Final = ("CapacityInsufficient", "PriorityBehind", "QuotaExhausted", "DependencyPending")


@dataclass(frozen=True)
class _Run:
    """A job to be: on which devices of a node and when, in seconds ago."""

    submitted_s: float
    start_s: float
    end_s: float
    node: str
    first: int
    devices: int


def write(cluster: DemoCluster, days: int) -> None:
    """Write what ran on each node with accelerators in these days, in the order of submission."""
    runs: list[_Run] = []
    for name in cluster.nodes:
        shape = SHAPES.get(name[0])
        if shape and shape.accelerator:
            # Some nodes run jobs as wide as they are, others two of half the width beside each other.
            width = cluster.rng.choice((shape.count, shape.count // 2))
            for first in range(0, shape.count, width):
                runs += _runs(cluster, name, first, width, days * DAY_S)
    for number, run in enumerate(sorted(runs, key=lambda run: -run.submitted_s)):
        _job(cluster, f"past-{number}", run)
    _meter(cluster)


def _runs(cluster: DemoCluster, node: str, first: int, width: int, since_s: float) -> list[_Run]:
    """What ran on one group of devices, one after the other."""
    rng, found, at = cluster.rng, [], since_s - cluster.rng.uniform(0, 7_200)
    while at > TODAY_S:
        end = max(TODAY_S, at - rng.choice((2_400, 9_000, 18_000, 40_000)) * rng.uniform(0.5, 1.4))
        waited = rng.choice((8, 60, 900, 7_200)) * rng.uniform(0.5, 1.6)
        found.append(_Run(at + waited, at, end, node, first, rng.choice((width, width, max(1, width // 2)))))
        at = end - rng.choice((60, 600, 5_400)) * rng.uniform(0.5, 1.5)
    return found


def _job(cluster: DemoCluster, key: str, run: _Run) -> None:
    rng = cluster.rng
    user, names = rng.choices(NAMES, weights=(5, 4, 4, 1))[0]
    model = SHAPES[run.node[0]].accelerator[2]  # type: ignore[index]
    cluster.submit(key, user, run.submitted_s, one(rng.choice(names), count=run.devices, model=model, limit="12h"))
    stage = only(cluster, key)
    _share, cause, code = rng.choices(ENDS, weights=[share for share, _cause, _code in ENDS])[0]
    facts = [(run.start_s, "placed", "engine", stage, placed(stage, [run.node], run.devices, 12_000))]
    start = run.start_s
    if rng.random() < 0.06 and run.start_s - run.end_s > 7_000:
        stopped = run.start_s - 3_000
        _try(cluster, key, run, start, stopped, "PREEMPTED", None)
        what = told(clause("EndedAfter", stage=stage, cause="PREEMPTED", ran_s=3_000))
        start = stopped - 300
        facts += [
            (stopped, "requeue", "agent", stage, what),
            (start, "placed", "engine", stage, placed(stage, [run.node], run.devices, 12_000)),
        ]
        cluster.stage(key, stage, preemptions=1)
    detail = _try(cluster, key, run, start, run.end_s, cause, code)
    state = "COMPLETED" if not cause else "CANCELLED" if cause == "CANCELLED" else "FAILED"
    if state == "COMPLETED":
        facts.append((run.end_s, "completed", "agent", stage, told(clause("Completed", stage=stage))))
    else:
        ran = told(clause("EndedAfter", stage=stage, cause=cause, ran_s=round(start - run.end_s)))
        facts.append((run.end_s, "ended", "agent", stage, ran))
    waited = run.submitted_s - run.start_s
    cluster.stage(
        key, stage, waited={rng.choice(WAITS): round(waited, 1)}, exit_code=code, detail=detail.text, said=detail.said
    )
    cluster.tell(key, *facts)
    cluster.finish(key, state, cause)


def _try(cluster: DemoCluster, key: str, run: _Run, start: float, end: float, cause: str, code: int | None) -> Told:
    said = {
        "EXIT_CODE": told(clause("ExitCode", code=1)),
        "OUT_OF_MEMORY": told(clause("MemoryOver", used_bytes=65 * GIB, asked_bytes=64 * GIB)),
        "TIMEOUT": told(clause("TimeLimit", limit_s=43_200)),
    }.get(cause, Told())
    stage = only(cluster, key)
    attempt = cluster.attempt(
        key, stage, [run.node], run.devices, start, end, cause=cause, exit_code=code, detail=said, first=run.first
    )
    lines = [f"step {step} | loss {2.4 - step / 900:.4f}" for step in range(100, 1000, 300)]
    cluster.log(attempt, "\n".join(lines) + "\n")
    if cause == "EXIT_CODE":
        cluster.log(attempt, "Traceback (most recent call last):\nRuntimeError: shapes do not match\n", "err")
    return said


def _meter(cluster: DemoCluster) -> None:
    """What was measured of each ended claim, by day."""
    rows = []
    for claim in Claim.objects.filter(closed_at__isnull=False).select_related("device").order_by("opened_at", "id"):
        begin, end = claim.opened_at, claim.closed_at
        assert end is not None, "only ended claims were asked for"
        use = cluster.rng.uniform(0.35, 0.95)
        while begin < end:
            until = min(end, _next_day(begin))
            known = int((until - begin).total_seconds() * claim.milli * 0.95)
            powered = known if claim.device.kind == "gpu" else 0
            rows.append(
                ClaimMeter(
                    claim=claim, day=day_of(begin), samples=known // 60_000, known_ms=known, busy_ms=int(known * use),
                    powered_ms=powered, millijoules=int(powered * (90 + 560 * use)), most_use=min(1.0, use * 1.05),
                    most_memory_bytes=int(claim.memory_bytes * 0.8),
                )
            )  # fmt: skip
            begin = until
    ClaimMeter.objects.bulk_create(rows, batch_size=1000)


def _next_day(moment: datetime) -> datetime:
    return begin_of(day_of(moment) + timedelta(days=1))
