"""The dry run: what the engine would do with a job submitted now, by the same engine on the same snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controlplane.accounts.models import User
from controlplane.jobs import basis, demand, funnel, possible
from controlplane.jobs import spec as jobfile
from controlplane.pools import profiles
from controlplane.scheduling import data_locality
from controlplane.scheduling.durations import DurationForecast
from controlplane.scheduling.memory_advice import MemoryPeaks
from controlplane.scheduling.store import LiveStore
from controlplane.scheduling.waiting_reasons import ACTS, moment, shown
from controlplane.whatif.questions import Question, ask
from scheduler.core.matching.feasible import never_fits
from scheduler.core.model.clauses import plain
from scheduler.core.model.kinds import is_device
from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import Placement, Plan, Snapshot, Stage
from scheduler.core.planning import aside
from scheduler.predict.finished import Asked
from scheduler.predict.memory import MemoryAdvice

IMPOSSIBLE = {"NoMatchingDevice", "ExceedsClusterMax"}

QUESTION: Final = Question("dry_run", dict)

_advisor = MemoryPeaks()
# It recomputes only what changed since the last question of this process; its plans are never applied.
_planner = aside.TolerantPlanner()


def dry_run(spec: dict[str, Any], user: User) -> dict[str, Any]:
    """Return where and when each stage of ``spec`` would run, or why it waits. Nothing is written.

    Raises ``InvalidSpec`` as a submission would, and ``NotAnswered``. ``verdict`` is *starts_now*, *queued* or *never*;
    ``refused`` lists what a submission would refuse as impossible on the existing nodes.
    """
    jobfile.resolve_all([spec], user)
    return ask(QUESTION, {"spec": without_values(spec), "user": user.pk}, user, anew=True)


def without_values(asked: Any, key: str = "") -> Any:
    """Return a job file without the values of its variables: planning does not need them, and some are secret."""
    if isinstance(asked, Mapping):
        if key == "env":
            return dict.fromkeys(asked, "")
        return {name: without_values(each, name) for name, each in asked.items()}
    return [without_values(each) for each in asked] if isinstance(asked, list) else asked


def answer(params: Mapping[str, Any], store: LiveStore, now: float) -> dict[str, Any]:
    """Plan the stages of ``params["spec"]`` together with those that wait."""
    user = User.objects.get(pk=params["user"])
    resolved = jobfile.resolve_all([params["spec"]], user)[0]
    refused = possible.faults([resolved])
    snapshot = store.load(now)
    stages = _stages(resolved, user, now, store)
    lengths = DurationForecast(snapshot, store.history.held)
    waiting, nodes = (*snapshot.waiting, *stages), snapshot.nodes
    if any(stage.inputs for stage in stages):
        nodes = data_locality.with_cached(nodes, waiting)
    world = replace(snapshot, waiting=waiting, nodes=nodes)
    _planner.plan(world, profiles.of(world.pools), now)
    plan = _planner.explained({stage.id for stage in stages})
    told = [
        {
            **_shown(stage, plan, world, lengths),
            "memory": _memory(resolved, each, user, now),
            "device_memory": _device_memory(resolved, each, _placement(stage, plan), world, user, now),
        }
        for stage, each in zip(stages, resolved.stages, strict=True)
    ]
    first = [each for stage, each in zip(stages, told, strict=True) if not stage.unmet]
    never = bool(refused) or any(never_fits(stage, world) for stage in stages)
    never = never or any(reason["code"] in IMPOSSIBLE for s in told for reason in s["reasons"])
    verdict = "never" if never else "starts_now" if all(each["starts_now"] for each in first) else "queued"
    ours = {stage.id for stage in stages}
    names = {run.id: f"#{run.number} {run.name}" for run in snapshot.running}
    return {
        "verdict": verdict,
        "refused": [{"pointer": one.pointer, "code": one.code, "detail": one.detail} for one in refused],
        "at": moment(now),
        "profile": next((pool.profile for pool in world.pools if pool.name == resolved.pool.name), ""),
        "stages": told,
        "preempts": [
            {"stage": names.get(p.victim, p.victim), "price": p.price, "gain": p.gain}
            for p in plan.preempts
            if p.stage in ours
        ],
        "resizes": [
            {"stage": names.get(r.victim, r.victim), "sizes": [r.was, r.size], "price": r.price, "gain": r.gain}
            for r in plan.resizes
            if r.stage in ours
        ],
    }


def _stages(resolved: jobfile.Resolved, user: User, now: float, store: LiveStore) -> list[Stage]:
    ids = {each.name: f"dry-{uuid.uuid4()}" for each in resolved.stages}
    return [
        Stage(
            id=ids[each.name],
            job="dry",
            number=0,
            name=each.name,
            project=resolved.project.name,
            user=user.get_username(),
            pool=resolved.pool.name,
            kind=each.kind,
            priority=resolved.priority,
            submitted_at=now,
            eligible_at=now,
            alternatives=demand.ways(each.request),
            estimate=store.history.estimate(
                resolved.project.name, resolved.name, each.name, each.kind, each.request, now, user.get_username()
            ),
            nodes=demand.least_nodes(each.request),
            most_nodes=demand.most_nodes(each.request),
            scaling=store.scaling.expected(resolved.project.name, resolved.name, each.name, now),
            priority_class=resolved.priority_class,
            precision=each.request.get("precision", ""),
            preemptible=each.request["preemptible"],
            time_limit_s=each.request["time_limit_s"],
            begin_at=each.begin_at.timestamp() if each.begin_at else None,
            deadline_at=demand.deadline_at(each.request, now),
            avoid=tuple(each.request.get("avoid", ())),
            only=demand.only(each.request),
            site=each.request.get("site", ""),
            mounts=demand.mount_sources(each.request),
            within=each.request.get("within", ""),
            within_required=each.request.get("within_required", False),
            inputs=tuple(sorted({one["digest"] for one in each.request.get("inputs", ()) if "digest" in one})),
            max_attempts=each.max_attempts,
            unmet=tuple(ids[need] for need in each.needs),
        )
        for each in resolved.stages
    ]


def _memory(resolved: jobfile.Resolved, stage: jobfile.ResolvedStage, user: User, now: float) -> dict[str, Any] | None:
    """Return advice on the host memory that a stage asks; None if there is nothing to advise."""
    advice = _advisor.advise(_asked(resolved, stage, user), stage.request, now)
    return _memory_advice(advice, stage.request["memory_bytes"])


def _device_memory(
    resolved: jobfile.Resolved,
    stage: jobfile.ResolvedStage,
    placement: Placement | None,
    world: Snapshot,
    user: User,
    now: float,
) -> dict[str, Any] | None:
    """Return advice on the memory of each device in the alternative that would run; None if there is none.

    A stage that names no memory and asks whole devices holds all of their memory; the advice says if much less would
    suffice.
    """
    ways = stage.request["alternatives"]
    way = next((one for one in ways if placement and one["index"] == placement.alternative), ways[0])
    ask = way["asks"][0]
    named = ask["memory_bytes"]
    if ask["kind"] == "cpu" or ask.get("partition"):
        return None
    asked = named
    if not named and ask["milli"] == 1000 and placement:
        held = {grant.device for grants in placement.grants for grant in grants}
        devices = [one for node in world.nodes for one in node.devices if one.id in held and one.kind == ask["kind"]]
        asked = min((one.memory_bytes for one in devices), default=0)
    if not asked:
        return None
    advice = _advisor.advise_on_device(_asked(resolved, stage, user), ask["kind"], asked, now)
    if advice is None or (advice.verdict == "tight" and not named):
        return None
    said = _memory_advice(advice, asked)
    return {**said, "kind": ask["kind"]} if said else None


def _asked(resolved: jobfile.Resolved, stage: jobfile.ResolvedStage, user: User) -> Asked:
    return Asked(resolved.project.name, f"{resolved.name}/{stage.name}", stage.kind, user.get_username())


def _memory_advice(advice: MemoryAdvice | None, asked_bytes: int) -> dict[str, Any] | None:
    if advice is None or advice.verdict == "fits":
        return None
    return {
        "verdict": advice.verdict,
        "asked_bytes": asked_bytes,
        "largest_bytes": advice.largest_bytes,
        "suggested_bytes": advice.suggested_bytes,
        "ran_out": advice.ran_out,
        **basis.memory(advice.seen, advice.ran_out),
    }


def _placement(stage: Stage, plan: Plan) -> Placement | None:
    """Return where a stage would run: now, or by its entry in the timetable."""
    start = next((each for each in plan.starts if each.stage == stage.id), None)
    wait = next((each for each in plan.waits if each.stage == stage.id), None)
    return start.placement if start else wait.planned.placement if wait and wait.planned else None


def _shown(stage: Stage, plan: Plan, world: Snapshot, lengths: DurationForecast) -> dict[str, Any]:
    nodes = {node.id: node.name for node in world.nodes}
    devices = {
        device.id: {"node": nodes[node.id], "kind": device.kind, "model": device.model, "index": device.index}
        for node in world.nodes
        for device in node.devices
        if is_device(device.kind)
    }
    start = next((each for each in plan.starts if each.stage == stage.id), None)
    wait = next((each for each in plan.waits if each.stage == stage.id), None)
    placement = _placement(stage, plan)
    return {
        "name": stage.name,
        "kind": stage.kind,
        "starts_now": start is not None,
        "why": start.why if start else "",
        "why_said": plain(start.said) if start else [],
        "expected_start": shown(wait.expected) if wait else None,
        "expected_s": lengths.plain(stage, placement),
        "devices": [
            {
                **devices[grant.device],
                "milli": grant.milli,
                "partition": grant.part.profile if grant.part else None,
                "slot": grant.part.start if grant.part else None,
            }
            for grants in placement.grants
            for grant in grants
            if grant.device in devices
        ]
        if placement
        else [],
        "reasons": [
            {"code": r.code, "text": sentence(r), "acts": ACTS[r.code], "params": dict(r.params)}
            for r in (wait.reasons if wait else ())
        ],
        **funnel.plain(wait.funnel if wait else (), stage.pool),
    }
