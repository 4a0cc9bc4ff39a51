"""Whether a job could ever run on what there is: asked at submit, so that nobody waits for what does not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from controlplane.fleet import world
from controlplane.jobs import demand
from controlplane.jobs.section import Refusal
from controlplane.jobs.spec import InvalidSpec, Resolved, ResolvedStage
from scheduler.core.feasible import never_fits
from scheduler.core.reasons import sentence
from scheduler.core.types import Estimate, Node, Reason, Snapshot, Stage


def check(resolved: Sequence[Resolved]) -> None:
    """Raises InvalidSpec for stages that could never run on what there is, so that nobody waits for nothing."""
    nodes = world.recent_nodes()
    faults: list[Refusal] = []
    judged: dict[int, Reason | None] = {}
    for number, job in enumerate(resolved):
        prefix = f"/jobs/{number}" if len(resolved) > 1 else ""
        for index, stage in enumerate(job.stages):
            key = id(stage.request)  # equal files of one request share their resolved stages
            if key not in judged:
                judged[key] = never_fits(_as_stage(job, stage), Snapshot(nodes=nodes))
            reason = judged[key]
            if reason is not None:
                faults.append(
                    Refusal(f"{prefix}/stages/{index}/devices", _impossible(stage, reason, nodes), reason.code)
                )
    if faults:
        raise InvalidSpec(faults[:100])


def _as_stage(job: Resolved, stage: ResolvedStage) -> Stage:
    return Stage(
        id="",
        job="",
        number=0,
        name=stage.name,
        project=job.project.name,
        user="",
        pool=job.pool.name,
        kind=stage.kind,
        priority=job.priority,
        submitted_at=0.0,
        eligible_at=0.0,
        alternatives=demand.ways(stage.request),
        estimate=Estimate(1.0, 1.0),
        nodes=stage.request["nodes"],
    )


def _impossible(stage: ResolvedStage, reason: Reason, nodes: Sequence[Node]) -> str:
    pool = str(reason.params.get("pool", ""))
    inside = [device for node in nodes if pool in node.pools for device in node.devices]
    counts = Counter((device.kind, device.model) for device in inside)
    has = ", ".join(f"{n} × {kind} {model}".strip() for (kind, model), n in sorted(counts.items())) or "no devices yet"
    return f"stage {stage.name} can never start: {sentence(reason)}; pool {pool} has {has}"
