"""Commands on recorded decisions: replay them, or evaluate another profile on them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler import profiles
from scheduler.core.model import encode
from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import Plan, Snapshot
from scheduler.core.planning import engine
from scheduler.decisions import canonical, difference, log
from scheduler.decisions import replay as again
from scheduler.decisions.log import Record

DAY_S = 86_400.0


def replay(args: argparse.Namespace) -> int:
    """Replay a stored snapshot, or every decision of a log."""
    source = Path(args.source)
    if source.suffix == ".json":
        return _snapshot(args, source)
    if args.profile is not None or args.now is not None:
        raise ValueError("--profile and --now belong to a snapshot (.json); for a log of decisions see diff --with")
    same = total = 0
    for record in _chosen(args, source):
        done = again.replay(record)
        same, total = same + done.same, total + 1
        if args.json:
            print(json.dumps({"id": record.id, "same": done.same, "same_code": done.same_code}))
            continue
        if args.id is not None:
            _print_plan(record.snapshot, done.plan)
        if not done.same:
            words = _other_plan(record, done.plan)
            code = "" if done.same_code else f" (decided by engine {record.code}, this is another)"
            print(f"decision {record.id} came out otherwise{code}: {words}")
    if not args.json:
        print(f"{same} of {total} decisions came out the same, byte for byte")
    return 0 if same == total else 1


def diff(args: argparse.Namespace) -> int:
    """Compare two profiles on the same recorded worlds."""
    first = profiles.named(args.profile) if args.profile else None
    second = profiles.named(args.second)
    week, found = difference.over(_chosen(args, Path(args.source)), first, second)
    one, two = args.profile or "recorded", args.second
    if args.json:
        print(json.dumps({"first": one, "second": two, **week.figures(), "differing": [number for number, _ in found]}))
        return 0
    if week.began_at is None or week.ended_at is None:
        print("no decision in that time")
        return 0
    print(f"{week.decisions} decisions from {_moment(week.began_at)} to {_moment(week.ended_at)}")
    print(f"{week.different} of them differ between {one} and {two}")
    print(f"{'':34}{one:>14}{two:>14}")
    for name, left, right in (
        ("starts", week.starts_first, week.starts_second),
        ("starts only under it", week.only_first, week.only_second),
        ("preemptions", week.preempts_first, week.preempts_second),
    ):
        print(f"{name:34}{left:>14,}{right:>14,}")
    print(f"{'starts under both, elsewhere':34}{week.elsewhere:>28,}")
    if week.earlier_s is not None:
        word = "earlier" if week.earlier_s >= 0 else "later"
        print(f"stages that wait under both are expected {abs(week.earlier_s):,.0f} s {word} by {two}")
    for number, seen in found[: args.show]:
        parts = [
            f"{len(names)} {what}"
            for what, names in (
                (f"started only by {one}", seen.only_first),
                (f"started only by {two}", seen.only_second),
                ("elsewhere", seen.elsewhere),
                (f"evicted only by {one}", seen.spared),
                (f"evicted only by {two}", seen.evicted),
            )
            if names
        ]
        print(f"decision {number}: {', '.join(parts)}")
    if len(found) > args.show:
        print(f"... and {len(found) - args.show} more (--show)")
    return 0


def _snapshot(args: argparse.Namespace, source: Path) -> int:
    snapshot, now = encode.load(source.read_text(encoding="utf-8"))
    now = args.now if args.now is not None else now
    if now is None:
        raise ValueError("the snapshot does not say when it was taken; give --now SECONDS")
    chosen = {pool.name: profiles.named(args.profile or pool.profile) for pool in snapshot.pools}
    plan = engine.plan(snapshot, chosen, now)
    if args.json:
        print(encode.dump(plan))
    else:
        _print_plan(snapshot, plan)
    return 0


def _chosen(args: argparse.Namespace, source: Path) -> Iterator[Record]:
    if not source.exists():
        raise ValueError(f"there is no {source}; a log of decisions is a folder, by default ~/.switchyard/decisions")
    if args.id is not None:
        record = log.find(source if source.is_dir() else source.parent, args.id)
        if record is None:
            raise ValueError(f"decision {args.id} is not kept in {source}")
        yield record
        return
    since = time.time() - args.days * DAY_S if args.days else 0.0
    for number, record in enumerate(log.read(source, since), 1):
        if sys.stderr.isatty() and number % 20 == 0:
            print(f"\r{number} decisions", end="", file=sys.stderr)
        yield record


def _print_plan(snapshot: Snapshot, plan: Plan) -> None:
    """Print the plan."""
    numbers = difference.named(snapshot)
    for start in plan.starts:
        print(f"start   {numbers[start.stage]}: {start.why}")
    for one in plan.preempts:
        print(f"preempt {numbers[one.victim]} for {numbers[one.stage]}: price {one.price:.0f}, gain {one.gain:.0f}")
    for each in plan.resizes:
        sizes = f"{each.was} -> {each.size} nodes"
        print(f"resize  {numbers[each.victim]}: {sizes}, {each.why}: price {each.price:.0f}, gain {each.gain:.0f}")
    for move in plan.moves:
        print(f"move    {numbers[move.victim]}: {move.why}: price {move.price:.0f}, gain {move.gain:.0f}")
    for wait in plan.waits:
        print(f"wait    {numbers[wait.stage]}: {'; '.join(sentence(reason) for reason in wait.reasons)}")


def _other_plan(record: Record, plan: Plan) -> str:
    """Describe the first difference between the recorded plan and this one."""
    numbers = difference.named(record.snapshot)
    seen = difference.compare(record.plan, plan)
    if seen.any:
        names = [*seen.only_first, *seen.only_second, *seen.elsewhere, *seen.spared, *seen.evicted]
        return ", ".join(numbers[name] for name in names[:5])
    if canonical.digest(record.plan) != record.digest:
        return "the recorded plan does not match its own digest"
    now = {wait.stage: wait for wait in plan.waits}
    other = [wait.stage for wait in record.plan.waits if now.get(wait.stage) != wait]
    if other:
        return f"{numbers[other[0]]} waits for other reasons or until another time"
    return "the order of the queue, or when to look again"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")


def add(commands: Any) -> None:
    """Add the two commands."""
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--id", type=int, help="only this decision")
    chosen.add_argument("--days", type=float, default=0.0, help="only the decisions of the last so many days")
    chosen.add_argument("--json", action="store_true", help="print JSON")
    one = commands.add_parser("replay", parents=[chosen], help="decide once more on what was known then")
    one.add_argument("source", help="a folder of decisions, one of its segments, or a snapshot (.json)")
    one.add_argument("--profile", help="for a snapshot: instead of the pools' own profiles")
    one.add_argument("--now", type=float, help="for a snapshot: seconds since the epoch, if the file does not say")
    one.set_defaults(run=replay)
    two = commands.add_parser("diff", parents=[chosen], help="what another profile would have decided")
    two.add_argument("source", help="a folder of decisions, or one of its segments")
    names = ", ".join(profiles.PROFILES)
    two.add_argument("--with", dest="second", required=True, help=f"the other profile: {names}")
    two.add_argument("--profile", help="compare with this profile instead of with what was decided")
    two.add_argument("--show", type=int, default=10, help="how many differing decisions to list (default 10)")
    two.set_defaults(run=diff)
