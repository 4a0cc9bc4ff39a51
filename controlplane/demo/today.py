"""The last hours of the simulated cluster: jobs that ended, run and wait, and nodes with faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from controlplane.clauses import Told, clause, of_engine, told
from controlplane.demo.cluster import DATA, SHAPES, DemoCluster, why_here
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Checkpoint, Job
from scheduler.core.model import retry


def write(cluster: DemoCluster) -> None:
    """Write the jobs of the last hours and the faults of nodes."""
    _history(cluster)
    _running(cluster)
    _waiting(cluster)
    _trouble(cluster)


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
                "profiling": {"allow": ["py-spy", "torch"]},
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


def one(name: str, *, kind: str = "train", nodes: int = 1, limit: str = "8h", **devices: Any) -> dict[str, Any]:
    """A job file with one stage."""
    stage: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "nodes": nodes,
        "time_limit": limit,
        "cpus": 8,
        "run": "python train.py",
    }
    return {"name": name, "stages": [stage | ({"devices": devices} if devices else {})]}


def _history(cluster: DemoCluster) -> None:
    for key, user, node, devices, start, end in (
        ("vlm-warmup", "lin.wei", "g01", 8, 26_000, 15_500),
        ("dpo-a", "ma.jun", "g03", 8, 25_000, 18_000),
        ("asr-base", "chen.yu", "n01", 8, 24_000, 9_000),
        ("tts-base", "chen.yu", "a01", 8, 22_000, 12_500),
        ("seg-pretrain", "lin.wei", "g04", 8, 21_000, 7_600),
        ("ocr-large", "ma.jun", "a02", 4, 19_000, 8_400),
    ):
        cluster.submit(key, user, start + 300, one(key, count=devices, model=SHAPES[node[0]].accelerator[2]))  # type: ignore[index]
        cluster.attempt(key, only(cluster, key), [node], devices, start, end, exit_code=0)
        cluster.finish(key, "COMPLETED")
    out_of_memory = told(clause("MemoryOver", used_bytes=65 << 30, asked_bytes=64 << 30))
    cluster.submit("clip-ft", "chen.yu", 15_000, one("clip-ft", count=4, model="H100"))
    killed = cluster.attempt(
        "clip-ft",
        only(cluster, "clip-ft"),
        ["g03"],
        4,
        14_800,
        11_200,
        cause="OUT_OF_MEMORY",
        exit_code=137,
        detail=out_of_memory,
    )
    cluster.log(killed, "epoch 1\n")
    cluster.log(killed, "\x1b[33mUserWarning\x1b[0m: 64 data workers on 8 cores\nKilled\n", "err")
    cluster.stage(
        "clip-ft",
        only(cluster, "clip-ft"),
        detail=out_of_memory.text,
        said=out_of_memory.said,
        exit_code=137,
    )
    cluster.finish("clip-ft", "FAILED", "OUT_OF_MEMORY")
    cluster.submit("probe", "ma.jun", 6_000, one("probe-run", limit="1h", count=2, model="H100"))
    cluster.attempt("probe", only(cluster, "probe"), ["g03"], 2, 5_900, 5_200, cause="CANCELLED")
    cluster.finish("probe", "CANCELLED", "CANCELLED")


def placed(stage: str, node_names: Sequence[str], devices: int, lasts_s: float) -> Told:
    return told(clause("Placed", stage=stage, why=why_here(node_names, devices, lasts_s)))


def only(cluster: DemoCluster, key: str) -> str:
    """The name of the single stage of a job."""
    return str(cluster.jobs[key].stages.get().name)


def _at_times(cluster: DemoCluster, lines: Sequence[str]) -> str:
    """These lines as if they had been printed evenly over the last 6900 s."""
    apart = timedelta(seconds=6_900 / len(lines))
    moments = (cluster.now - (len(lines) - place) * apart for place in range(len(lines)))
    return "".join(f"{moment:%Y-%m-%d %H:%M:%S} {line}\n" for moment, line in zip(moments, lines, strict=True))


def _running(cluster: DemoCluster) -> None:
    cluster.submit("sft", "lin.wei", 12_400, _finetune("qwen3-32b-sft"))
    cluster.attempt("sft", "preprocess", ["c01"], 0, 12_300, 9_900, exit_code=0, cores=32)
    cluster.attempt("sft", "load", ["g01"], 0, 9_800, 9_300, exit_code=0, cores=16)
    for name, ago in (("preprocess", 9_900), ("load", 9_300)):
        cluster.stage("sft", name, state="COMPLETED", exit_code=0, ended_at=cluster.now - timedelta(seconds=ago))
    first = cluster.attempt("sft", "train", ["g01", "g02"], 8, 9_200, 7_300, cause="PREEMPTED", cores=16)
    train = cluster.attempt("sft", "train", ["g01", "g02"], 8, 7_000, cores=16, lasts_s=15_900)
    cluster.curve(first, range(1, 1400, 5), 2.4)
    cluster.curve(train, range(900, 3941, 5), 2.4)
    for attempt, since, until in ((first, 9_200, 7_300), (train, 7_000, 0)):
        stage = attempt.stage
        Checkpoint.objects.bulk_create(
            Checkpoint(
                stage=stage,
                attempt=attempt,
                step=100 * i + (0 if attempt == first else 900),
                path=f"/shared/12/train/checkpoints/step-{i}",
                at=cluster.now - timedelta(seconds=ago),
            )
            for i, ago in enumerate(range(int(since) - 700, int(until), -700), 1)
        )
    cluster.stage(
        "sft",
        "train",
        state="RUNNING",
        preemptions=1,
        progress={"step": 3940, "total": 9000, "phase": "update"},
        values={"loss": 0.8709, "lr": 1.6e-05, "tokens_per_s": 41_600},
    )
    cluster.wait("sft", "validate", "DependencyPending", "waits for train", params={"stages": "train"}, start_s=14_000)
    cluster.wait("sft", "infer", "DependencyPending", "waits for validate", params={"stages": "validate"})
    cluster.run("sft")
    lines = [
        f"step {s} | loss {2.4 / math.log(s / 300 + 2.6):.4f} | lr 1.62e-05 | {41.6 + s % 7 / 10:.1f}k tok/s"
        for s in range(900, 3941, 5)
    ]
    lines[40] = "\x1b[33mwarning:\x1b[0m data worker 3 took 1.9 s (median 0.4 s); shard 0417 on slow path"
    lines[-3] = f"evaluating {cluster.written} & <b>not bold</b>"
    cluster.log(train, _at_times(cluster, lines))
    others = [f"rank 1: step {s} | all-reduce {12 + s % 9 / 10:.1f} ms" for s in range(900, 3941, 20)]
    others[30] = "ERROR: rank 1: lost a connection to g01:29500 (timed out); trying again"
    cluster.log(train, _at_times(cluster, others), rank=1)
    cluster.log(train, "\x1b[31mNCCL WARN\x1b[0m NET/IB : no RDMA device found, falling back to sockets\n", "err")
    verdict = retry.decide("PREEMPTED", 1, 1, preemptions=1)
    cluster.tell(
        "sft",
        (12_300, "placed", "engine", "preprocess", placed("preprocess", ["c01"], 0, 2_500)),
        (9_900, "completed", "agent", "preprocess", told(clause("Completed", stage="preprocess"))),
        (9_200, "placed", "engine", "train", placed("train", ["g01", "g02"], 8, 15_900)),
        (7_330, "stop", "engine", "train", told(clause("AskedToStop", stage="train", cause="PREEMPTED"))),
        (
            7_300,
            "requeue",
            "agent",
            "train",
            told(
                clause("EndedAfter", stage="train", cause="PREEMPTED", ran_s=1_896),
                clause("Detail", detail=told(clause("Signal", signal="SIGTERM"))),
                clause("Then", what=of_engine(verdict.why, verdict.said)),
            ),
        ),
        (7_000, "placed", "engine", "train", placed("train", ["g01", "g02"], 8, 15_900)),
    )
    more: dict[str, dict[str, Any]] = {
        "moe": {"mounts": [{"source": DATA, "path": DATA}]},
        "hold-idle": {"ports": [{"name": "lab", "port": 8888, "path": "/lab?token={token}"}], "idle_timeout": "4h"},
        "rerank": {"workdir": {"git": {"url": "https://git.example.org/vision/rerank.git", "rev": "main"}}},
    }
    for key, name, user, node, devices, ago, step in (
        ("moe", "moe-router", "ma.jun", "g04", 6, 5_400, 0.61),
        ("diffusion", "diffusion-npu", "chen.yu", "n01", 8, 4_300, 0.34),
        ("rerank", "rerank-ft", "lin.wei", "a01", 4, 2_500, 0.82),
        ("hold-idle", "notebook-7b", "chen.yu", "g03", 2, 3_900, 0.1),
    ):
        model = SHAPES[node[0]].accelerator[2]  # type: ignore[index]
        cluster.submit(key, user, ago + 200, one(name, count=devices, model=model) | more.get(key, {}))
        if "workdir" in more.get(key, {}):
            cluster.fetch(key, ago + 190)
        attempt = cluster.attempt(key, only(cluster, key), [node], devices, ago)
        if "ports" in more.get(key, {}):
            attempt.parts.update(listens=[8888], visited_at=cluster.now - timedelta(minutes=50))
        cluster.stage(
            key,
            only(cluster, key),
            state="RUNNING",
            progress={"step": int(step * 5000), "total": 5000, "phase": ""},
            values={"loss": round(2.2 - step, 4)},
        )
        cluster.run(key)
    cluster.submit("starting", "ma.jun", 40, one("yolo-port", count=2, model="Ascend 910B"))
    starting = cluster.attempt("starting", only(cluster, "starting"), ["n02"], 2, 12, lasts_s=2_900)
    Attempt.objects.filter(pk=starting.pk).update(started_at=None)
    cluster.stage("starting", only(cluster, "starting"), state="STARTING")
    cluster.run("starting")


def _waiting(cluster: DemoCluster) -> None:
    cluster.submit("llama", "lin.wei", 4_300, one("llama-pretrain-v4", nodes=2, limit="24h", count=8, model="H100"))
    cluster.wait(
        "llama",
        only(cluster, "llama"),
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
    g01 = cluster.nodes["g01"].devices.filter(kind="gpu").values_list("id", flat=True)
    g02 = cluster.nodes["g02"].devices.filter(kind="gpu").values_list("id", flat=True)
    start = cluster.now + timedelta(seconds=9_000)
    cluster.stage(
        "llama",
        only(cluster, "llama"),
        planned={
            "start_at": start.isoformat(),
            "end_at": (start + timedelta(hours=6)).isoformat(),
            "devices": [str(each) for each in (*g01, *g02)],
        },
    )
    cluster.submit("asr", "chen.yu", 2_100, one("asr-distill", count=8, model="Ascend 910B", limit="4h"))
    cluster.wait(
        "asr",
        only(cluster, "asr"),
        "QuotaExhausted",
        "project speech holds 16 of 16 npu and may borrow 0 more",
        acts="lead",
        params={"project": "speech", "held": 16, "nominal": 16, "kind": "npu", "borrow": 0},
        start_s=3_000,
    )
    n02 = cluster.nodes["n02"].devices.filter(kind="npu").values_list("id", flat=True)
    begin = cluster.now + timedelta(seconds=3_000)
    cluster.stage(
        "asr",
        only(cluster, "asr"),
        planned={
            "start_at": begin.isoformat(),
            "end_at": (begin + timedelta(hours=3)).isoformat(),
            "devices": [str(each) for each in n02],
        },
    )
    cluster.submit("held", "ma.jun", 1_500, {**one("speech-tts-ft", count=4, model="MI300X"), "hold": True})
    cluster.wait(
        "held", only(cluster, "held"), "Held", "on hold by ma.jun", acts="user or admin", params={"who": "ma.jun"}
    )
    cluster.submit("hostile", "ma.jun", 900, one("named-by-hand", kind="generic"))
    # A job file could not name it so; a row that came in some other way could.
    Job.objects.filter(pk=cluster.jobs["hostile"].pk).update(name=cluster.written, labels={"note": cluster.written})
    cluster.wait("hostile", only(cluster, "hostile"), "PendingEvaluation", "not yet looked at")


def _trouble(cluster: DemoCluster) -> None:
    for card, health, why in (
        ("a02-gpu5", "UNHEALTHY", told(clause("EccUncorrected", count=3))),
        ("a02-gpu6", "DEGRADED", told(clause("PcieWidth", lanes=8, most=16))),
    ):
        Device.objects.filter(uuid=card).update(health=health, health_reason=why.text, health_said=why.said)
    lacks = [told(clause(code)) for code in ("LacksSessions", "LacksContainers", "LacksGangs", "LacksSamples")]
    Node.objects.filter(name="c01").update(
        state="DRAINING",
        reason="firmware 2.11, ticket 4182",
        executor="Slurm",
        lacks=[each.text for each in lacks],
        lacks_said=[each.said for each in lacks],
    )
    full = told(clause("NearlyFull", mount="/var", size_gib=894, percent=3))
    Node.objects.filter(name="n02").update(conditions={"notes": [full.text], "notes_said": [full.said]})
