"""The result of a scenario: for each world its metrics, waits, utilisation, projects and attempts by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduler.core.model.clauses import plain
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Running
from scheduler.scenario.scenario import Cell, Scenario, scaled
from scheduler.sim.metrics import measure
from scheduler.sim.world import Lived, SimulatedWorld

# The most points of a curve and bars of a chart.
POINTS: Final = 101
STEPS: Final = 160
BARS: Final = 400
LANES: Final = 40


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt: its stage, node, share of how many accelerators, begin and end, and its cause."""

    stage: str
    project: str
    nodes: tuple[str, ...]
    devices: float
    start: float
    end: float
    done: bool


Progress = Callable[[int, int, int, Cell], None]
"""Hears of the number of the world, of its ended stages, of all its stages, and which it is."""


def simulate(scenario: Scenario, progress: Progress | None = None) -> dict[str, Any]:
    """Simulate every world of the scenario. The result is plain JSON and the same for the same scenario."""
    shown = {(cell.profile, cell.load): cell for cell in reversed(scenario.cells)}
    cells = []
    for number, cell in enumerate(scenario.cells):
        segments: list[AttemptSpan] = []
        world = _world(scenario, cell, segments)
        bar = (lambda done, total, n=number, c=cell: progress(n, done, total, c)) if progress else None
        lived = world.run(bar)
        cells.append(_cell(scenario, cell, lived, segments, with_chart=shown[cell.profile, cell.load] == cell))
    return {
        "name": scenario.name,
        "simulated": True,
        "stages": len(scenario.trace),
        "devices": scenario.devices,
        "nodes": len(scenario.nodes),
        "notes": list(scenario.trace.notes),
        "notes_said": [plain(note) for note in scenario.trace.said],
        "left_out": scenario.trace.left_out,
        "cells": cells,
        "summary": summary(cells),
    }


def _world(scenario: Scenario, cell: Cell, segments: list[AttemptSpan]) -> SimulatedWorld:
    world = SimulatedWorld(
        scenario.nodes,
        scaled(scenario.trace, cell.load),
        scenario.profiles[cell.profile],
        seed=cell.seed,
        chance=scenario.chance,
        weights=dict(scenario.weights) or None,
        every_s=scenario.every_s,
    )

    def witness(running: Running, now: float, *, done: bool) -> None:
        grants = [one for rank in running.placement.grants for one in rank]
        width = sum(one.milli for one in grants if is_accelerator(world.store.devices[one.device].kind)) / 1000
        segments.append(
            AttemptSpan(running.id, running.project, running.placement.nodes, width, running.started_at, now, done)
        )

    world.witness = witness
    return world


def _cell(
    scenario: Scenario, cell: Cell, lived: Lived, segments: Sequence[AttemptSpan], *, with_chart: bool
) -> dict[str, Any]:
    figures = measure(lived).figures()
    return {
        "profile": cell.profile,
        "load": cell.load,
        "seed": cell.seed,
        "figures": figures,
        "wait": _waits(lived),
        "utilisation": _utilisation(lived, segments),
        "projects": _projects(lived),
        "gantt": _gantt(scenario, lived, segments) if with_chart else None,
    }


def _waits(lived: Lived) -> dict[str, list[float]]:
    """Return the empirical distribution of waits until the first start: seconds, and the share that waited no
    longer."""
    waits = sorted(
        (one.started_at or 0.0) - one.stage.submitted_at for one in lived.entries if one.started_at is not None
    )
    if not waits:
        return {"x": [], "y": []}
    shares = np.linspace(0, 1, POINTS)
    values = np.quantile(np.array(waits), shares)
    return {"x": [round(float(v), 1) for v in values], "y": [round(float(share), 4) for share in shares]}


def _utilisation(lived: Lived, segments: Sequence[AttemptSpan]) -> dict[str, list[float]]:
    """Return the share of accelerators held, in equal steps from the first submission to the last end; x in seconds."""
    span = lived.ended_at - lived.began_at
    if span <= 0 or not lived.devices:
        return {"x": [], "y": []}
    edges = np.linspace(lived.began_at, lived.ended_at, STEPS + 1)
    held = np.zeros(STEPS)
    for one in segments:
        first = max(0, int(np.searchsorted(edges, one.start, "right")) - 1)
        last = min(STEPS, int(np.searchsorted(edges, one.end, "left")))
        for step in range(first, last):
            overlap = min(one.end, edges[step + 1]) - max(one.start, edges[step])
            held[step] += max(0.0, float(overlap)) * one.devices
    shares = held / (span / STEPS * lived.devices)
    return {
        "x": [round(float(edge - lived.began_at), 1) for edge in edges[:-1]],
        "y": [round(float(share), 4) for share in shares],
    }


def _projects(lived: Lived) -> list[dict[str, Any]]:
    found: dict[str, list[Any]] = {}
    for entry in lived.entries:
        found.setdefault(entry.stage.project, []).append(entry)
    rows = []
    for name, entries in sorted(found.items()):
        done = [one for one in entries if one.state is State.COMPLETED]
        waits = [(one.started_at or 0.0) - one.stage.submitted_at for one in done]
        slow = [
            ((one.ended_at or 0.0) - one.stage.submitted_at) / max((one.ended_at or 0.0) - (one.started_at or 0.0), 1.0)
            for one in done
        ]
        rows.append(
            {
                "project": name,
                "stages": len(entries),
                "completed": len(done),
                "wait_avg_s": round(float(np.mean(waits)), 1) if waits else 0.0,
                "wait_p95_s": round(float(np.quantile(waits, 0.95)), 1) if waits else 0.0,
                "slowdown": round(float(np.mean(slow)), 3) if slow else 1.0,
                "device_h": round(sum(one.busy_device_s for one in entries) / 3600, 2),
                "preemptions": sum(one.preemptions for one in entries),
            }
        )
    return rows


def _gantt(scenario: Scenario, lived: Lived, segments: Sequence[AttemptSpan]) -> dict[str, Any]:
    """Return the longest attempts by node: lanes are the first nodes, widths of bars the held share of the node.

    ``cut`` is how many shorter attempts on these nodes are not drawn, and ``nodes`` how many nodes there are.
    """
    lanes = [node.name for node in scenario.nodes][:LANES]
    drawn = set(lanes)
    here = [one for one in segments if drawn.intersection(one.nodes)]
    chosen = sorted(here, key=lambda one: -(one.end - one.start) * max(one.devices, 0.001))[:BARS]
    bars = [
        {
            "lane": node,
            "stage": one.stage,
            "project": one.project,
            "devices": one.devices,
            "from": round(one.start - lived.began_at, 1),
            "to": round(one.end - lived.began_at, 1),
            "done": one.done,
        }
        for one in chosen
        for node in one.nodes
        if node in drawn
    ]
    bars.sort(key=lambda bar: (bar["lane"], bar["from"], bar["stage"]))
    return {
        "lanes": lanes,
        "bars": bars,
        "cut": max(0, len(here) - BARS),
        "nodes": len(scenario.nodes),
        "span_s": lived.ended_at - lived.began_at,
    }


def summary(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per load and profile: each metric as the mean over seeds, and the largest deviation from it."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["load"], cell["profile"]), []).append(cell["figures"])
    rows = []
    for (load, profile), found in groups.items():
        row: dict[str, Any] = {"load": load, "profile": profile, "seeds": len(found), "figures": {}, "spread": {}}
        for name in found[0]:
            values = [one[name] for one in found if one[name] is not None]
            if not values:
                row["figures"][name] = None
                continue
            mean = sum(values) / len(values)
            row["figures"][name] = round(mean, 6)
            row["spread"][name] = round(max(abs(value - mean) for value in values), 6)
        rows.append(row)
    return rows
