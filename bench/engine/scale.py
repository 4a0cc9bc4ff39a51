"""One event, one node that changes, and a plan from nothing, at 10,000 nodes with 80,000 devices and 100,000 stages
that wait.

The cluster is full but for what single ends give back: three quarters of the devices run stages of one to eight GPUs,
nodes come in four models, and the queue holds four classes of forty projects in two dozen shapes: fractions, whole
devices, gangs, stages that wait for others, and stages with a choice of models. Whoever runs has been stopped as often
as the profile allows, so that no eviction is left to make: the queue waits for what ends.
"""

from __future__ import annotations

import gc
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import (
    Alternative,
    Ask,
    Device,
    Estimate,
    Grant,
    News,
    Node,
    Placement,
    Plan,
    Project,
    Quota,
    Running,
    Snapshot,
    Stage,
)
from scheduler.core.planning.engine import Planner, plan
from scheduler.core.world.service import as_running
from scheduler.profiles import named

KEYS: Final = (
    "event_ms",
    "event_worst_ms",
    "node_event_ms",
    "node_event_worst_ms",
    "only_node_event_ms",
    "only_node_event_worst_ms",
    "full_plan_s",
)
NEEDS_NO_TRACES: Final = True
NODES, GPUS, WAITING, EVENTS, ONLY = 10_000, 8, 100_000, 40, 200
MODELS: Final = ("H100", "A100", "L40S", "MI300X")
CLASSES: Final = (1000, 750, 500, 250)
NOW: Final = 1_700_000_000.0
GIB: Final = 2**30


def nodes() -> tuple[Node, ...]:
    """Ten thousand nodes in racks of forty."""
    made = []
    for i in range(NODES):
        name, model = f"n{i:05}", MODELS[i * len(MODELS) // NODES]
        cpu = Device(f"{name}/cpu0", name, "cpu", "generic", "CPU", 0, 1024 * GIB, 128_000)
        cards = (Device(f"{name}/gpu{g}", name, "gpu", "generic", model, g, 80 * GIB) for g in range(GPUS))
        made.append(Node(name, name, NodeState.READY, ("default",), (cpu, *cards), {"rack": f"r{i // 40:03}"}))
    return tuple(made)


def going(machines: tuple[Node, ...], dice: random.Random) -> tuple[Running, ...]:
    """What runs: every node is full, a quarter of them with one stage, the others with smaller ones."""
    stages: list[Running] = []
    for i, node in enumerate(machines):
        sizes = [8] if i % 4 == 0 else [4, 4] if i % 4 == 1 else [4, 2, 1, 1] if i % 4 == 2 else [1] * 8
        at = 0
        for size in sizes:
            cards = tuple(Grant(f"{node.id}/gpu{g}", 1000, 0) for g in range(at, at + size))
            at += size
            stages.append(_running(len(stages), node, (*cards, Grant(f"{node.id}/cpu0", size * 1000, GIB)), dice))
    return tuple(stages)


def _running(number: int, node: Node, grants: tuple[Grant, ...], dice: random.Random) -> Running:
    p50 = dice.uniform(600, 86_400)
    return Running(
        id=f"run-{number:06}",
        job=f"run-{number:06}",
        number=number,
        name="train",
        project=f"project-{number % 40}",
        user="ann",
        pool="default",
        kind="train",
        priority=CLASSES[number % 4],
        state=State.RUNNING,
        attempt=f"run-{number:06}-1",
        placement=Placement(0, (node.id,), (grants,)),
        started_at=NOW - dice.uniform(0, 0.9 * p50),
        estimate=Estimate(p50, 2 * p50),
        preemptible=number % 3 > 0,
        checkpoint_at=NOW - dice.uniform(0, 600),
        preemptions=5,
    )


def shapes() -> list[tuple[int, tuple[Alternative, ...]]]:
    """What is asked for: pairs of a number of nodes and the ways to run."""

    def alternative(count: int, milli: int = 1000, model: str = "", index: int = 0) -> Alternative:
        memory = 16 * GIB if milli < 1000 else 0
        return Alternative(index, (Ask("gpu", count, milli, memory, model=model), Ask("cpu", 1, 1000 * count, GIB)))

    found: list[tuple[int, tuple[Alternative, ...]]] = [(1, (alternative(count),)) for count in (1, 2, 4, 8)]
    found += [(1, (alternative(1, milli),)) for milli in (125, 250, 500)]
    found += [(1, (alternative(count, model=model),)) for model in MODELS for count in (1, 4)]
    found += [(size, (alternative(8, model=model),)) for model in MODELS[:2] for size in (2, 4, 16)]
    found += [
        (
            1,
            (
                alternative(2, model="H100"),
                alternative(2, model="A100", index=1),
                alternative(4, model="L40S", index=2),
            ),
        )
    ]
    return found


def queue(dice: random.Random) -> tuple[Stage, ...]:
    """A hundred thousand stages; one in ten waits for another."""
    asked, stages = shapes(), list[Stage]()
    weights = [8] * 4 + [4] * 3 + [2] * 8 + [1] * 6 + [2]
    for number in range(WAITING):
        size, alternatives = dice.choices(asked, weights)[0]
        p50 = dice.uniform(300, 43_200)
        name = f"wait-{number:06}"
        stages.append(
            Stage(
                id=name,
                job=name,
                number=100_000 + number,
                name="train",
                project=f"project-{number % 40}",
                user="ann",
                pool="default",
                kind="train",
                priority=dice.choices(CLASSES, (1, 9, 60, 30))[0],
                submitted_at=NOW - 90_000 + number * 0.8,
                eligible_at=NOW - 90_000 + number * 0.8,
                alternatives=alternatives,
                estimate=Estimate(p50, 2 * p50),
                nodes=size,
                unmet=(stages[-1].id,) if number % 10 == 9 else (),
            )
        )
    return tuple(stages)


def particular(waiting: tuple[Stage, ...], machines: tuple[Node, ...], dice: random.Random) -> tuple[Stage, ...]:
    """The queue in which so many stages want nodes of their own, by name and by rack in turn."""
    found = list(waiting)
    for i in range(ONLY):
        some = dice.sample(machines, 8)
        words = {one.name for one in some} if i % 2 else {f"rack={one.labels['rack']}" for one in some}
        at = i * len(found) // ONLY
        found[at] = replace(found[at], only=(tuple(sorted(words)),))
    return tuple(found)


def world(seed: int = 1) -> Snapshot:
    """The whole of it."""
    dice = random.Random(seed)
    machines = nodes()
    running = going(machines, dice)
    projects = tuple(Project(f"project-{i}", 1.0 + i % 3, dice.uniform(1e5, 1e7)) for i in range(40))
    quotas = tuple(Quota(one.id, "gpu", 2_000_000, 2_000_000) for one in projects)
    return Snapshot(machines, queue(dice), running, projects, quotas)


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """``event_ms`` is the median over ends of single stages (each gives devices back and lets others start), with the
    memory of a planner; ``node_event_ms`` the same over single nodes that drain and come back, and
    ``only_node_event_ms`` where 200 stages want nodes of their own; ``full_plan_s`` one plan without any, with the
    reasons of all who wait. Seconds of one core."""
    snapshot, profile = world(), named("hybrid")
    gc.collect()
    gc.freeze()
    began = _cpu_s()
    plan(snapshot, profile, NOW)
    full_s = _cpu_s() - began
    planner, now, spent, serial = Planner(), NOW, list[float](), 0
    snapshot, news = _settled(snapshot, planner, now)
    serial = news.serial
    gc.freeze()
    for i in range(EVENTS):
        now += 1.0
        gone = snapshot.running[(i * 7919) % len(snapshot.running)].id
        snapshot = replace(snapshot, running=tuple(one for one in snapshot.running if one.id != gone))
        serial += 1
        news = News(serial, news.waiting, {**news.running, gone: None})
        began = _cpu_s()
        found = planner.plan(snapshot, profile, now, news)
        spent.append(_cpu_s() - began)
        snapshot, news = _after(snapshot, found, now, serial)
        progress(i + 1, 3 * EVENTS)
    on_nodes = _on_nodes(snapshot, planner, now, news, lambda i: progress(EVENTS + i, 3 * EVENTS))
    snapshot = world()
    snapshot = replace(snapshot, waiting=particular(snapshot.waiting, snapshot.nodes, random.Random(2)))
    planner = Planner()
    snapshot, news = _settled(snapshot, planner, NOW)
    only = _on_nodes(snapshot, planner, NOW, news, lambda i: progress(2 * EVENTS + i, 3 * EVENTS))
    spent.sort()
    return {
        "event_ms": 1000 * spent[len(spent) // 2],
        "event_worst_ms": 1000 * spent[-1],
        "node_event_ms": 1000 * on_nodes[len(on_nodes) // 2],
        "node_event_worst_ms": 1000 * on_nodes[-1],
        "only_node_event_ms": 1000 * only[len(only) // 2],
        "only_node_event_worst_ms": 1000 * only[-1],
        "full_plan_s": full_s,
    }


def _on_nodes(
    snapshot: Snapshot, planner: Planner, now: float, news: News, progress: Callable[[int], None]
) -> list[float]:
    """What the planner spends on each of the nodes that drain and come back, ascending. Seconds of one core."""
    spent, serial = list[float](), news.serial
    for i in range(EVENTS):
        now += 1.0
        before = snapshot.nodes[((i // 2) * 7919) % NODES]
        after = replace(before, state=NodeState.READY if i % 2 else NodeState.DRAINING)
        machines = tuple(after if one is before else one for one in snapshot.nodes)
        snapshot = replace(snapshot, nodes=machines)
        serial += 1
        news = News(serial, news.waiting, news.running, {after.id: after})
        began = _cpu_s()
        found = planner.plan(snapshot, named("hybrid"), now, news)
        spent.append(_cpu_s() - began)
        snapshot, news = _after(snapshot, found, now, serial)
        progress(i + 1)
    return sorted(spent)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _settled(snapshot: Snapshot, planner: Planner, now: float) -> tuple[Snapshot, News]:
    """The world after its first plans were made true, until nothing starts any more."""
    serial, news = 1, News(1)
    while True:
        found = planner.plan(snapshot, named("hybrid"), now, news)
        snapshot, news = _after(snapshot, found, now, serial)
        if not news.waiting and not news.running:
            return snapshot, news
        serial += 1
        news = replace(news, serial=serial)


def _after(snapshot: Snapshot, found: Plan, now: float, serial: int) -> tuple[Snapshot, News]:
    """The world with the plan made true, and what changed, as a store tells it."""
    started = {one.stage: one for one in found.starts}
    promised = {one.stage: one.planned for one in found.waits}
    came: dict[str, Stage | None] = dict.fromkeys(started)
    begun: dict[str, Running | None] = {}
    waiting = []
    for one in snapshot.waiting:
        if one.id in started:
            begun[one.id] = _begun(one, started[one.id].placement, now)
            continue
        if one.id in promised:
            came[one.id] = one = replace(one, promise=promised[one.id])
        waiting.append(one)
    more = tuple(one for one in begun.values() if one is not None)
    world = replace(snapshot, waiting=tuple(waiting), running=(*snapshot.running, *more))
    return world, News(serial, came, begun)


def _begun(one: Stage, placement: Placement, now: float) -> Running:
    begun = as_running(one, placement, now, state=State.RUNNING, attempt=f"{one.id}-1", estimate=one.estimate)
    return replace(begun, preemptions=5)
