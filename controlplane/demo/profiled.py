"""Profiles of a running stage of the simulated cluster: one that is kept, with its file, and one that failed."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.core.files.base import ContentFile

from controlplane.clauses import Told, clause, told
from controlplane.demo.cluster import DemoCluster
from controlplane.jobs import traces
from controlplane.jobs.models import Part, StageTrace

SECONDS: Final = 20
# As often as py-spy looks.
PER_S: Final = 100
# What a training loop does, outermost first, with its file and line, and how often of a hundred looks.
LOOP: Final = (("<module>", "train.py", 214), ("main", "train.py", 188), ("train_epoch", "train.py", 131))
STACKS: Final = (
    (46, (("backward", "torch/_tensor.py", 648), ("_engine_run_backward", "torch/autograd/graph.py", 841))),
    (24, (("forward", "model.py", 77), ("attention", "model.py", 41))),
    (14, (("step", "torch/optim/adamw.py", 243),)),
    (11, (("__next__", "torch/utils/data/dataloader.py", 734), ("collate", "data.py", 52))),
    (5, (("all_reduce", "torch/distributed/distributed_c10d.py", 2_938),)),
)


def write(cluster: DemoCluster) -> None:
    """Write what was asked of the fine-tuning that runs, a quarter of an hour ago and since."""
    part = Part.objects.get(
        attempt__stage__job=cluster.jobs["sft"], attempt__stage__name="train", ended_at=None, rank=0
    )
    unheard = told(clause("TraceUnheard", waited_s=traces.UNHEARD_S))
    _failed(_asked(cluster, part, "torch", 900), unheard)
    content = speedscope(f"train, rank {part.rank} (simulated)", cluster.now)
    taken = _asked(cluster, part, "py-spy", 600)
    assert traces.begin(taken.id, part.node), "it was asked for now"
    assert traces.store(taken.id, part.node, ContentFile(content), len(content)), "it has begun"
    began, ended = (taken.asked_at + timedelta(seconds=late) for late in (2, 4 + SECONDS))
    StageTrace.objects.filter(id=taken.id).update(began_at=began, ended_at=ended)


def _asked(cluster: DemoCluster, part: Part, tool: str, ago_s: float) -> StageTrace:
    job = cluster.jobs["sft"]
    actor, at = job.user.get_username(), cluster.now - timedelta(seconds=ago_s)
    asked = clause("TraceAsked", actor=actor, tool=tool, stage="train", rank=part.rank, seconds=SECONDS)
    cluster.tell("sft", (ago_s, "trace", actor, "train", told(asked)))
    return StageTrace.objects.create(part=part, tool=tool, seconds=SECONDS, asked_by=job.user, asked_at=at)


def _failed(trace: StageTrace, why: Told) -> None:
    trace.state, trace.detail, trace.said = StageTrace.State.FAILED, why.text, why.said
    trace.ended_at = trace.asked_at + timedelta(seconds=traces.UNHEARD_S)
    trace.save()


def speedscope(name: str, now: datetime) -> bytes:
    """Return a profile in the form that py-spy writes and speedscope opens; the same at one time."""
    dice = random.Random(now.timestamp())
    frames: list[dict[str, Any]] = []
    index: dict[tuple[str, str, int], int] = {}
    for frame in (*LOOP, *(frame for _, frames_ in STACKS for frame in frames_)):
        index[frame] = len(frames)
        frames.append({"name": frame[0], "file": frame[1], "line": frame[2], "col": None})
    stacks = [[index[frame] for frame in (*LOOP, *inner)] for _, inner in STACKS]
    samples = dice.choices(stacks, weights=[often for often, _ in STACKS], k=SECONDS * PER_S)
    profile = {
        "type": "sampled", "name": f'Process 1 Thread 0x1 "{name}"', "unit": "seconds", "startValue": 0.0,
        "endValue": float(SECONDS), "samples": samples, "weights": [1 / PER_S] * len(samples),
    }  # fmt: skip
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "profiles": [profile],
            "shared": {"frames": frames},
            "activeProfileIndex": None,
            "exporter": "switchyard seed_demo (simulated)",
            "name": name,
        }
    )
