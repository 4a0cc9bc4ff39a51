"""What it costs to write a decision down, beside what it costs to decide; and whether deciding once more is the same.

Half a made-up day on 25 nodes of eight GPUs is lived through under *hybrid*; at every eighth cycle the world is planned
from scratch and written into a log as the live record does it; at the end all of it is decided once more. CPU times of
this process; no oracle: predictions are wrong by a factor of about 1.35.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scheduler.core.planning import engine
from scheduler.decisions import canonical, code, log, replay
from scheduler.decisions.log import Record, Writer
from scheduler.profiles import named
from scheduler.scenario import arrivals
from scheduler.sim.cluster import cluster
from scheduler.sim.world import Chance, SimulatedWorld

KEYS: Final = ("decision_write_ms", "decision_write_share", "decision_bytes", "decisions_same")
NEEDS_NO_TRACES: Final = True
NODES, JOBS, PER_HOUR, EVERY = "25x8", 700, 60.0, 8
SEED: Final = 5


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """Mean CPU milliseconds and bytes per record, the writing's share of the planning, and the share that came out the
    same again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spent_s, planned_s, sizes = _live(folder, progress)
        records = list(log.read(folder))
        same = sum(replay.replay(one).same for one in records)
    count = max(len(sizes), 1)
    return {
        "decision_write_ms": 1000 * spent_s / count,
        "decision_write_share": spent_s / max(planned_s, 1e-9),
        "decision_bytes": sum(sizes) / count,
        "decisions_same": same / count,
    }


def _live(folder: Path, progress: Callable[[int, int], None]) -> tuple[float, float, list[int]]:
    writer, profile, names = Writer(folder), named("hybrid"), {"default": "hybrid"}
    found = arrivals.generate({"jobs": JOBS, "per_hour": PER_HOUR, "seed": SEED})
    world = SimulatedWorld(cluster(NODES), found, profile, seed=SEED, chance=Chance(error=0.3))
    spent_s = planned_s = 0.0
    sizes: list[int] = []
    cycles = 0

    def look(done: int, total: int) -> None:
        progress(done, total)

    decide = world._cycle

    def written_down() -> None:
        nonlocal spent_s, planned_s, cycles
        cycles += 1
        if cycles % EVERY == 0:
            snapshot = world.store.load(world.now)
            began = _cpu_s()
            plan = engine.plan(snapshot, profile, world.now)
            thought = _cpu_s()
            record = Record(
                id=len(sizes) + 1,
                at=world.now,
                code=code.version(),
                profiles=names,
                specs=replay.specs_of(names),
                snapshot=snapshot,
                plan=plan,
                digest=canonical.digest(plan),
            )
            sizes.append(writer.append(record))
            planned_s += thought - began
            spent_s += _cpu_s() - thought
        decide()

    world._cycle = written_down  # type: ignore[method-assign]
    world.run(look)
    return spent_s, planned_s, sizes


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
