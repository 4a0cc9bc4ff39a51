"""Small worlds written as literals: nodes, devices and stages with defaults that tests override."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from scheduler.core.model.kinds import DISK, amount_id
from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import (
    Alternative,
    Ask,
    Device,
    Estimate,
    Grant,
    Node,
    Placement,
    Plan,
    Running,
    Snapshot,
    Stage,
    Start,
    Wait,
)
from scheduler.core.planning import engine
from scheduler.core.resources.elastic import hastened
from scheduler.policies.overtake import Overtake
from scheduler.profiles import named

NOW = 1_000_000.0
# The default, but nobody is stopped for another of the same class.
STEADY = replace(
    named("hybrid"), policies=tuple(one for one in named("hybrid").policies if not isinstance(one[0], Overtake))
)
GIB = 2**30


def node(name: str, gpus: int = 0, cores: int = 32, *, npus: int = 0, model: str = "H100", **more: Any) -> Node:
    """A node with one CPU device and so many accelerators; ids of devices are ``<node>/gpu0``, ``<node>/cpu0``."""
    devices = [Device(f"{name}/cpu0", name, "cpu", "intel", "Xeon", 0, 256 * GIB, cores * 1000)]
    devices += [Device(f"{name}/gpu{i}", name, "gpu", "nvidia", model, i, 80 * GIB) for i in range(gpus)]
    devices += [Device(f"{name}/npu{i}", name, "npu", "huawei", "910B", i, 64 * GIB) for i in range(npus)]
    return Node(name, name, more.pop("state", NodeState.READY), more.pop("pools", ("default",)), tuple(devices), **more)


def with_disk(one: Node, space: int, mbps: int = 0) -> Node:
    """The node with so many bytes of disk space and MB/s of disk bandwidth for its stages."""
    disk = Device(amount_id(one.id, DISK), one.id, DISK, "", "", 1 << 20, space, mbps)
    return replace(one, devices=(*one.devices, disk))


def on_disk(alternatives: tuple[Alternative, ...], space: int, mbps: int = 0) -> tuple[Alternative, ...]:
    """These alternatives, each with an ask for so much of the node's disk."""
    ask = Ask(DISK, 1, mbps, space)
    return tuple(replace(one, asks=(*one.asks, ask)) for one in alternatives)


def alternative(
    gpus: int = 0, cores: float = 1, *, index: int = 0, milli: int = 1000, memory: int = 0, **ask: Any
) -> Alternative:
    """GPUs (or another kind) and CPU cores of one node."""
    kind = ask.pop("kind", "gpu")
    accelerators = (Ask(kind, gpus, milli, memory, **ask),) if gpus else ()
    return Alternative(index, (*accelerators, Ask("cpu", 1, int(cores * 1000), GIB)))


def stage(number: int, gpus: int = 1, **more: Any) -> Stage:
    """A train stage that asks ``gpus`` and a core, runs 100 s (at worst 150 s), and came in the order of numbers."""
    p50 = more.pop("p50", 100.0)
    given: dict[str, Any] = {
        "id": f"s{number:03}",
        "job": f"j{number:03}",
        "number": number,
        "name": "train",
        "project": "lab",
        "user": "ann",
        "pool": "default",
        "kind": "train",
        "priority": 500,
        "submitted_at": NOW - 1000 + number,
        "eligible_at": NOW - 1000 + number,
        "alternatives": (alternative(gpus),),
        "estimate": Estimate(p50, more.pop("p90", 1.5 * p50)),
    }
    return Stage(**{**given, **more})


def running(number: int, devices: dict[str, list[str]], *, since: float = 50.0, **more: Any) -> Running:
    """A stage that runs on whole GPUs (``{"a": ["gpu0"]}``) and a core of each node, for ``since`` seconds so far."""
    p50 = more.pop("p50", 100.0)
    grants = tuple(
        (*(Grant(f"{name}/{one}", 1000, 0) for one in found), Grant(f"{name}/cpu0", 1000, GIB))
        for name, found in devices.items()
    )
    given: dict[str, Any] = {
        "id": f"r{number:03}",
        "job": f"k{number:03}",
        "number": number,
        "name": "train",
        "project": "lab",
        "user": "bob",
        "pool": "default",
        "kind": "train",
        "priority": 500,
        "state": State.RUNNING,
        "attempt": f"r{number:03}-1",
        "placement": Placement(0, tuple(devices), grants),
        "started_at": NOW - since,
        "estimate": Estimate(p50, more.pop("p90", 1.5 * p50)),
    }
    return Running(**{**given, **more})


def begun(snapshot: Snapshot, plan: Plan, now: float) -> Snapshot:
    """The world right after ``plan`` was applied: its starts run, and its promises are on record."""
    started = {one.stage: one for one in plan.starts}
    promised = {one.stage: one.planned for one in plan.waits}
    going = tuple(_run(one, started[one.id], now) for one in snapshot.waiting if one.id in started)
    waiting = tuple(replace(one, promise=promised[one.id]) for one in snapshot.waiting if one.id not in started)
    return replace(snapshot, waiting=waiting, running=snapshot.running + going)


def _run(one: Stage, start: Start, now: float) -> Running:
    return Running(
        id=one.id,
        job=one.job,
        number=one.number,
        name=one.name,
        project=one.project,
        user=one.user,
        pool=one.pool,
        kind=one.kind,
        priority=one.priority,
        state=State.RUNNING,
        attempt=f"{one.id}-1",
        placement=start.placement,
        started_at=now,
        estimate=hastened(one.estimate, one.nodes, len(start.placement.nodes), one.scaling),
        time_limit_s=one.time_limit_s,
        alternatives=one.alternatives,
        least_nodes=one.nodes if one.most_nodes else 0,
        most_nodes=one.most_nodes,
        scaling=one.scaling,
    )


def ended(snapshot: Snapshot, *ids: str) -> Snapshot:
    """The world after these running stages completed."""
    waiting = tuple(replace(w, unmet=tuple(need for need in w.unmet if need not in ids)) for w in snapshot.waiting)
    return replace(snapshot, running=tuple(r for r in snapshot.running if r.id not in ids), waiting=waiting)


def think(snapshot: Snapshot, profile: str | Profile = "hybrid", now: float = NOW) -> Plan:
    """The plan, after the laws that hold for every plan were checked."""
    plan = engine.plan(snapshot, named(profile) if isinstance(profile, str) else profile, now)
    check_laws(snapshot, plan)
    return plan


def check_laws(snapshot: Snapshot, plan: Plan) -> None:
    """Each waiting stage exactly once; gangs whole; no device oversold; a reason for each that waits."""
    named_once = Counter([one.stage for one in plan.starts] + [one.stage for one in plan.waits])
    assert named_once == Counter(one.id for one in snapshot.waiting)
    waiting = {one.id: one for one in snapshot.waiting}
    devices = {device.id: device for one in snapshot.nodes for device in one.devices}
    milli: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    placements = [one.placement for one in snapshot.running]
    for start in plan.starts:
        placements.append(start.placement)
        asked, size = waiting[start.stage], len(start.placement.nodes)
        assert asked.nodes <= size <= max(asked.nodes, asked.most_nodes)
        assert len(start.placement.grants) == len(set(start.placement.nodes)) == size
        for name, grants in zip(start.placement.nodes, start.placement.grants, strict=True):
            assert grants
            assert all(devices[one.device].node == name for one in grants)
    for placement in placements:
        for rank in placement.grants:
            for one in rank:
                milli[one.device] += one.milli
                memory[one.device] += one.memory_bytes
    for name, used in milli.items():
        if name in devices:
            assert used <= devices[name].capacity_milli, f"{name} is oversold"
            assert memory[name] <= devices[name].memory_bytes, f"the memory of {name} is oversold"
    assert all(one.reasons for one in plan.waits)
    going = {one.id: one for one in snapshot.running}
    for one in plan.resizes:
        known = going[one.victim]
        assert known.least_nodes <= one.size <= known.most_nodes
        assert one.was == len(known.placement.nodes)
        assert known.preemptible
    told = [one.victim for one in plan.stops]
    assert len(told) == len(set(told)), "somebody was told to stop twice"


def waits(plan: Plan) -> dict[str, Wait]:
    return {one.stage: one for one in plan.waits}


def starts(plan: Plan) -> dict[str, Start]:
    return {one.stage: one for one in plan.starts}


def primary(plan: Plan, stage_id: str) -> str:
    """The code of the first reason of a stage that waits."""
    return waits(plan)[stage_id].reasons[0].code
