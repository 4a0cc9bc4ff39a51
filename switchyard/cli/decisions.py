"""``yard decisions``: lists what the engine decided, and shows the plan of one decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard decisions --job 42 --did evict   the newest decisions that stopped a stage of job 42
  yard decisions 118                    what decision 118 started, and what waited for which reasons
  yard decisions 118 --under fifo       what another profile would have done with the same jobs and nodes
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", type=int, metavar="NUMBER", help="show this one; else they are listed")
    parser.add_argument("--under", metavar="PROFILE", default="", help="with a number: how this profile's plan differs")
    parser.add_argument("--job", type=int, metavar="NUMBER", help="only those that started, stopped or skipped it")
    parser.add_argument("--did", choices=("start", "evict", "skip", "wait"), default="", help="only those that did it")
    parser.add_argument("--code", default="", help="only those in which a stage waited for this reason")
    parser.add_argument("-n", "--limit", type=int, default=20, help="at most so many (20 if not told)")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.under and args.number is None:
        raise UsageError("say which decision is compared: yard decisions NUMBER --under PROFILE")
    with connect(args) as client:
        if args.number is None:
            found = client.decisions.list(job=args.job, did=args.did, code=args.code, most=args.limit)
            output.many(args, found, COLUMNS, name=lambda decision: decision["id"])
        elif args.under:
            differing = client.decisions.difference(args.number, args.under)
            output.one(args, differing, lambda: map(clean.line, _difference(differing)), name=args.number)
        else:
            detail = client.decisions.get(args.number)
            output.one(args, detail, lambda: map(clean.line, _plan(detail)), name=args.number)
    return exits.OK


def _plan(detail: Row) -> Iterator[str]:
    decision = detail["decision"]
    at, took = units.clock(decision["at"]), f"{decision['duration_ms']:.0f} ms"
    yield f"decision {decision['id']}  {at}  {decision['profile']}  {took}"
    if not detail["recorded"]:
        yield "  its inputs are not in the log any more"
    for start in detail["starts"]:
        yield f"  starts {start['stage']} on {', '.join(start['nodes'])}: {start['why']}"
    for stopped in decision["evicted"]:
        yield f"  stops {stopped['stage']}: {stopped['why']}"
    for wait in detail["waits"]:
        yield f"  {wait['stage']} waits: {'; '.join(units.reason(reason) for reason in wait['reasons'])}"
    if detail["cut"] or detail["hidden"]:
        yield f"  and {detail['cut']} more stages, {detail['hidden']} that you may not see"


def _difference(found: Row) -> Iterator[str]:
    if not found["differs"]:
        yield f"{found['profile']} would have done the same"
    for what, told in found["difference"].items():
        if told:
            yield f"{what.replace('_', ' ')}: {_stages(told) if isinstance(told, list) else told}"


def _stages(entries: list[Row]) -> str:
    return " ".join(str(entry["stage"]) for entry in entries)


COLUMNS = (
    Column("DECISION", lambda d: d["id"], right=True),
    Column("AT", lambda d: units.clock(d["at"])),
    Column("PROFILE", lambda d: d["profile"]),
    Column("TOOK", lambda d: f"{d['duration_ms']:.0f} ms", right=True),
    Column("STARTED", lambda d: _stages(d["started"])),
    Column("STOPPED", lambda d: _stages(d["evicted"])),
    Column("WAITING", lambda d: d["waiting"], right=True),
    Column("REASONS", lambda d: ", ".join(f"{count} {code}" for code, count in d["waits"].items())),
    Column("SKIPPED", lambda d: " ".join(d["skipped"]), wide=True),
)
