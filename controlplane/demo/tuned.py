"""A sweep of the simulated cluster that has ended, most of whose elements were stopped early."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import timedelta
from typing import Any, Final

from controlplane.clauses import told
from controlplane.demo.cluster import DemoCluster
from controlplane.jobs import halving, service
from controlplane.jobs.models import Array, Job, RungResult, Stage

POINTS: Final = 18
BEGAN_S: Final = 14_000
# Each element is so much later than the one before, and takes so long for a step.
APART_S: Final = 300
STEP_S: Final = 1.2

SWEEP: Final[dict[str, Any]] = {
    "name": "lr-sweep",
    "pool": "simulated",
    "cpus": 4,
    "run": 'python train.py --lr "$YARD_PARAM_LR" --layers "$YARD_PARAM_LAYERS"',
    "array": {
        "parameters": {"lr": {"log_uniform": [0.00001, 0.1]}, "layers": {"integers": [2, 12]}},
        "sample": POINTS,
        "seed": 7,
        "max_parallel": 6,
        "halving": {"metric": "loss", "goal": "minimize", "min_steps": 100, "reduction_factor": 3, "rungs": 3},
    },
}


def write(cluster: DemoCluster) -> None:
    """Write the sweep and what became of its elements, by the rule that it has."""
    (array,) = service.submit_many([SWEEP], cluster.jobs["sft"].user)
    assert isinstance(array, Array), "the file names an array"
    submitted = cluster.now - timedelta(seconds=BEGAN_S + 60)
    Array.objects.filter(pk=array.pk).update(submitted_at=submitted)
    seen: dict[int, list[float | None]] = defaultdict(list)
    for job in array.jobs.order_by("array_index"):
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        _element(cluster, array, job, seen)


def _element(cluster: DemoCluster, array: Array, job: Job, seen: dict[int, list[float | None]]) -> None:
    rule = halving.rule(array.halving or {})
    stage = job.stages.get()
    began_s = BEGAN_S - APART_S * (job.array_index or 0)
    result = None
    for rung, step in enumerate(rule.steps(), 1):
        value = _loss(job.parameters, step)
        verdict = rule.judge(value, seen[rung])
        seen[rung].append(value)
        result = RungResult.objects.create(
            stage=stage,
            rung=rung,
            step=step,
            value=value,
            at=cluster.now - timedelta(seconds=began_s - STEP_S * step),
            verdict=RungResult.Judgement.GOES_ON if verdict.goes_on else RungResult.Judgement.STOPPED,
            among=verdict.among,
            cutoff=verdict.cutoff,
        )
        if not verdict.goes_on:
            break
    assert result is not None, "a rule has a rung"
    is_stopped = result.verdict == RungResult.Judgement.STOPPED
    last = result.step if is_stopped else 1_200
    cause = "EARLY_STOPPED" if is_stopped else ""
    why = halving.why(rule, result)
    name = str(job.number)
    cluster.jobs[name] = job
    cluster.attempt(
        name,
        stage.name,
        ["c01"],
        0,
        began_s,
        began_s - STEP_S * last,
        cause=cause,
        exit_code=None if is_stopped else 0,
        detail=why if is_stopped else told(),
        cores=4,
    )
    values = {"loss": _loss(job.parameters, last)}
    Stage.objects.filter(pk=stage.pk).update(values=values, progress={"step": last, "total": 1_200, "phase": ""})
    if is_stopped:
        cluster.stage(name, stage.name, detail=why.text, said=why.said)
        cluster.tell(name, (began_s - STEP_S * last, "early_stop", "engine", "", why))
    cluster.finish(name, "CANCELLED" if is_stopped else "COMPLETED", cause)


def _loss(point: dict[str, Any] | None, step: int) -> float:
    """A loss that falls fastest near a rate of 0.003, and lower with more layers."""
    assert point is not None, "elements of a sweep have parameters"
    far = abs(math.log10(point["lr"]) + 2.5)
    return round(0.2 + 0.35 * far + 0.5 / point["layers"] + 1.8 / math.sqrt(step) * (1 + far), 4)
