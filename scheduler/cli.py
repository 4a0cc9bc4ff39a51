"""The engine from the command line, without the record: simulate a trace, compare profiles, replay a snapshot.

python -m scheduler.cli simulate TRACE --profile hybrid --nodes 8x8
python -m scheduler.cli compare TRACE --profiles static,dynamic,hybrid,fifo --nodes 8x8
python -m scheduler.cli replay SNAPSHOT
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler import profiles
from scheduler.core import encode, engine
from scheduler.core.reasons import sentence
from scheduler.core.types import Running, Stage
from scheduler.sim.cluster import cluster
from scheduler.sim.metrics import Metrics, measure
from scheduler.sim.traces import Arrival, read
from scheduler.sim.world import Chance, World


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 with a sentence on stderr when it could not."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (OSError, ValueError) as error:
        print(f"{error}", file=sys.stderr)
        return 2


def simulate(args: argparse.Namespace) -> int:
    """Live through a trace under one profile and print what it was worth."""
    _print({args.profile: _live(args, read(args.trace), args.profile)}, args.json)
    return 0


def compare(args: argparse.Namespace) -> int:
    """Live through the same trace under several profiles, side by side."""
    arrivals = read(args.trace)
    names = [name.strip() for name in args.profiles.split(",")]
    for name in names:
        profiles.named(name)
    _print({name: _live(args, arrivals, name) for name in names}, args.json)
    return 0


def replay(args: argparse.Namespace) -> int:
    """Decide once more on a stored snapshot and print the plan."""
    snapshot, now = encode.load(Path(args.snapshot).read_text(encoding="utf-8"))
    now = args.now if args.now is not None else now
    if now is None:
        raise ValueError("the snapshot does not say when it was taken; give --now SECONDS")
    chosen = {pool.name: profiles.named(args.profile or pool.profile) for pool in snapshot.pools}
    plan = engine.plan(snapshot, chosen, now)
    if args.json:
        print(encode.dump(plan))
        return 0
    everyone: list[Stage | Running] = [*snapshot.waiting, *snapshot.running]
    numbers = {one.id: f"{one.number}/{one.name}" for one in everyone}
    for start in plan.starts:
        print(f"start   {numbers[start.stage]}: {start.why}")
    for one in plan.preempts:
        print(f"preempt {numbers[one.victim]} for {numbers[one.stage]}: price {one.price:.0f}, gain {one.gain:.0f}")
    for wait in plan.waits:
        print(f"wait    {numbers[wait.stage]}: {'; '.join(sentence(reason) for reason in wait.reasons)}")
    return 0


def _live(args: argparse.Namespace, arrivals: list[Arrival], profile: str) -> Metrics:
    chance = Chance(
        error=args.error,
        node_mtbf_s=args.mtbf_h * 3600,
        checkpoint_s=args.checkpoint_s,
    )
    nodes = cluster(args.nodes, args.cores)
    world = World(nodes, arrivals, profiles.named(profile), seed=args.seed, chance=chance, every_s=args.every_s)
    return measure(world.run(_bar(profile) if sys.stderr.isatty() else None))


def _bar(profile: str) -> Callable[[int, int], None]:
    """A progress bar on the terminal, drawn at most five times a second."""
    drawn_at = 0.0

    def draw(done: int, total: int) -> None:
        nonlocal drawn_at
        if time.monotonic() - drawn_at > 0.2 or done == total:
            drawn_at = time.monotonic()
            filled = 40 * done // max(total, 1)
            end = "\n" if done == total else ""
            print(f"\r{profile:>10} [{'#' * filled}{' ' * (40 - filled)}] {done}/{total}", end=end, file=sys.stderr)

    return draw


def _print(found: dict[str, Metrics], as_json: bool) -> None:
    """One column per profile, or JSON."""
    if as_json:
        print(json.dumps({name: one.figures() for name, one in found.items()}, indent=2))
        return
    print(f"{'':18}" + "".join(f"{name:>14}" for name in found))
    for row in next(iter(found.values())).figures():
        values = (one.figures()[row] for one in found.values())
        print(f"{row:18}" + "".join(f"{'-' if value is None else format(value, ',.6g'):>14}" for value in values))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler.cli", description="The engine, without the record.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    names = ", ".join(profiles.PROFILES)
    world = argparse.ArgumentParser(add_help=False)
    world.add_argument("trace", help="a CSV file: submit_s,duration_s,gpus[,project,...]; may end in .gz")
    world.add_argument("--nodes", default="8x8", help="NODESxGPUS[:MODEL], several joined by commas (default 8x8)")
    world.add_argument("--cores", type=int, default=128, help="CPU cores of each node (default 128)")
    world.add_argument("--seed", type=int, default=0, help="the same seed gives the same world (default 0)")
    world.add_argument("--error", type=float, default=0.0, help="spread of predicted durations, 0 knows the truth")
    world.add_argument("--mtbf-h", type=float, default=0.0, help="mean hours between failures of one node, 0 is never")
    world.add_argument("--checkpoint-s", type=float, default=0.0, help="seconds between checkpoints, 0 is never")
    world.add_argument("--every-s", type=float, default=0.0, help="least simulated seconds between cycles")
    world.add_argument("--json", action="store_true", help="print JSON")
    one = commands.add_parser("simulate", parents=[world], help="live through a trace under one profile")
    one.add_argument("--profile", default=profiles.DEFAULT, help=f"one of {names}")
    one.set_defaults(run=simulate)
    many = commands.add_parser("compare", parents=[world], help="live through a trace under several profiles")
    many.add_argument("--profiles", default=",".join(profiles.PROFILES), help=f"some of {names}, joined by commas")
    many.set_defaults(run=compare)
    again = commands.add_parser("replay", help="decide once more on a stored snapshot")
    again.add_argument("snapshot", help="a file written by scheduler.core.encode.dump")
    again.add_argument("--profile", help="instead of the pools' own profiles")
    again.add_argument("--now", type=float, help="seconds since the epoch, if the file does not say")
    again.add_argument("--json", action="store_true", help="print the plan as canonical JSON")
    again.set_defaults(run=replay)
    return parser


if __name__ == "__main__":
    sys.exit(main())
