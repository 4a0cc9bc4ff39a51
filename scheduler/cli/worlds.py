"""Commands that simulate a trace: under one profile, under several, or by a scenario."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from scheduler import profiles
from scheduler.cli import plots
from scheduler.scenario import report, scenario
from scheduler.scenario.scenario import Cell, Scenario, ScenarioError
from scheduler.sim.traces import FORMATS

MOST_COLUMNS = 8
MAIN = (
    "jct_avg_s",
    "jct_p95_s",
    "wait_avg_s",
    "wait_p95_s",
    "utilisation",
    "preemptions",
    "lost_device_s",
    "promises_kept",
    "jain",
    "slowdown_max",
)


def simulate(args: argparse.Namespace) -> int:
    """Simulate a trace under one profile and print the metrics."""
    return _run(args, args.profile)


def compare(args: argparse.Namespace) -> int:
    """Simulate the same trace under several profiles, and print them side by side."""
    return _run(args, args.profiles)


def _run(args: argparse.Namespace, chosen: str) -> int:
    asked = _scenario(args, chosen)
    for note in asked.trace.notes:
        print(note, file=sys.stderr)
    found = report.simulate(asked, _Bar(len(asked.cells)) if sys.stderr.isatty() else None)
    if args.plots:
        Path(args.plots).write_text(plots.page(found), encoding="utf-8")
        print(f"plots are in {args.plots}", file=sys.stderr)
    if args.json:
        print(json.dumps(found if args.whole else _figures(found), indent=2))
    else:
        _print(found)
    return 0


def _scenario(args: argparse.Namespace, chosen: str) -> Scenario:
    """Build the scenario of the file or the arguments; a file ends in .yaml and takes no other arguments about its
    world."""
    path = Path(args.trace)
    if path.suffix in (".yaml", ".yml"):
        return scenario.read(path)
    body: dict[str, Any] = {
        "name": path.name,
        "trace": {"file": str(path.resolve()), "format": args.format, **({"first": args.first} if args.first else {})},
        "world": {
            "nodes": args.nodes,
            "cores": args.cores,
            "error": args.error,
            "mtbf_h": args.mtbf_h,
            "checkpoint_s": args.checkpoint_s,
            "every_s": args.every_s,
        },
        "profiles": chosen,
        "loads": _list(args.loads, float, "--loads"),
        "seeds": list(range(args.seed, args.seed + args.seeds)),
    }
    try:
        return scenario.build(body, beside=path.parent)
    except ScenarioError as error:
        raise ValueError(error.problem if error.at in ("trace", "profiles", "world.nodes") else str(error)) from None


def _list(text: str, kind: Any, name: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} takes numbers joined by commas, not {text!r}") from None


class _Bar:
    """A progress bar on the terminal, drawn at most five times a second."""

    def __init__(self, worlds: int) -> None:
        self._worlds, self._drawn_at = worlds, 0.0

    def __call__(self, number: int, done: int, total: int, cell: Cell) -> None:
        last = done == total
        if time.monotonic() - self._drawn_at > 0.2 or last:
            self._drawn_at = time.monotonic()
            filled = 40 * done // max(total, 1)
            what = f"{number + 1}/{self._worlds} {cell.profile} x{cell.load:g} seed {cell.seed}"
            end = "\n" if last else ""
            print(f"\r{what:>30} [{'#' * filled}{' ' * (40 - filled)}] {done}/{total}", end=end, file=sys.stderr)


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics alone: by profile if there is one load and one seed, else one row for each load and
    profile."""
    rows = found["summary"]
    if {row["load"] for row in rows} == {1.0} and all(row["seeds"] == 1 for row in rows):
        return {row["profile"]: row["figures"] for row in rows}
    return {"summary": rows}


def _print(found: dict[str, Any]) -> None:
    """Print one table per load, one column per profile; with several seeds the mean and the largest deviation.

    With many profiles each has a line, with the most important metrics.
    """
    rows = found["summary"]
    loads = list(dict.fromkeys(row["load"] for row in rows))
    for load in loads:
        columns = [row for row in rows if row["load"] == load]
        if loads != [1.0]:
            print(f"load {load:g}")
        if len(columns) > MOST_COLUMNS:
            width = max(len(row["profile"]) for row in columns)
            print(" " * width + "".join(f"{name:>16}" for name in MAIN))
            for row in columns:
                print(f"{row['profile']:{width}}" + "".join(f"{_shown(row, name, brief=True):>16}" for name in MAIN))
            continue
        print(f"{'':18}" + "".join(f"{row['profile']:>22}" for row in columns))
        for name in columns[0]["figures"]:
            print(f"{name:18}" + "".join(f"{_shown(row, name):>22}" for row in columns))
    print(f"simulated: {found['stages']:,} stages on {found['nodes']:,} nodes with {found['devices']:,} accelerators")


def _shown(row: dict[str, Any], name: str, *, brief: bool = False) -> str:
    value, spread = row["figures"][name], 0.0 if brief else row["spread"].get(name, 0.0)
    if value is None:
        return "-"
    return f"{value:,.6g}" + (f" ±{spread:,.3g}" if row["seeds"] > 1 and spread else "")


def add(commands: Any) -> None:
    """Add the two commands."""
    names = ", ".join(profiles.PROFILES)
    world = argparse.ArgumentParser(add_help=False)
    world.add_argument(
        "trace", help="a scenario (.yaml), or a trace: CSV (submit_s,duration_s,gpus[,...]), SWF, JSON lines; .gz too"
    )
    world.add_argument("--format", choices=["auto", *FORMATS], default="auto", help="known by name and header if auto")
    world.add_argument("--first", type=int, default=0, help="take only so many stages of the trace")
    world.add_argument("--nodes", default="8x8", help="NODESxGPUS[:MODEL], several joined by commas (default 8x8)")
    world.add_argument("--cores", type=int, default=128, help="CPU cores of each node (default 128)")
    world.add_argument("--loads", default="1", help="how much faster stages arrive, several joined by commas (1)")
    world.add_argument("--seed", type=int, default=0, help="the same seed gives the same world (default 0)")
    world.add_argument("--seeds", type=int, default=1, help="live through so many seeds, from --seed on (default 1)")
    world.add_argument("--error", type=float, default=0.0, help="spread of predicted durations, 0 knows the truth")
    world.add_argument("--mtbf-h", type=float, default=0.0, help="mean hours between failures of one node, 0 is never")
    world.add_argument("--checkpoint-s", type=float, default=0.0, help="seconds between checkpoints, 0 is never")
    world.add_argument("--every-s", type=float, default=0.0, help="least simulated seconds between cycles")
    world.add_argument("--json", action="store_true", help="print JSON")
    world.add_argument("--whole", action="store_true", help="with --json: curves, projects and bars too")
    world.add_argument("--plots", metavar="FILE.html", help="draw waits, utilisation, projects and Gantt into a page")
    one = commands.add_parser("simulate", parents=[world], help="live through a trace under one profile")
    one.add_argument("--profile", default=profiles.DEFAULT, help=f"one of {names}")
    one.set_defaults(run=simulate)
    many = commands.add_parser("compare", parents=[world], help="live through a trace under several profiles")
    many.add_argument("--profiles", default=",".join(profiles.PROFILES), help=f"some of {names}, joined by commas")
    many.set_defaults(run=compare)
