"""``yard drain``: drains nodes: nothing new is placed, and what runs finishes, saves, or stops at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, spans, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

EXAMPLES = """
  yard drain g07 --reason "fan swap, ticket 311"
  yard drain g07 g08 --mode save --dry-run
  yard drain g07 --deadline 2h --reason "kernel update" && yard nodes
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="+", help="names or ids")
    parser.add_argument("--reason", default="", help="why; others will ask, and it is recorded with the nodes")
    parser.add_argument(
        "--mode",
        choices=("finish", "save", "now"),
        default="finish",
        help="what runs may finish (the default), saves and is queued again, or is stopped now and queued again",
    )
    parser.add_argument(
        "--deadline", metavar="SPAN", type=spans.seconds, help="what has not finished by then saves and is queued again"
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what would stop, what is lost, and when; no more")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask before something is stopped")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    if not args.dry_run and not args.reason.strip():
        raise UsageError("a drain needs --reason; others will ask")
    if args.deadline is not None and args.mode != "finish":
        raise UsageError("--deadline goes with --mode finish, which is the default")
    with connect(args) as client:

        def drain(*, dry_run: bool, if_match: str = "*") -> Row:
            return client.nodes.drain_several(
                args.node, args.reason, mode=args.mode, deadline_s=args.deadline, dry_run=dry_run, if_match=if_match
            )

        stops = args.mode != "finish" and not args.yes and sys.stdin.isatty() and sys.stderr.isatty()
        if args.dry_run or stops:
            shown = drain(dry_run=True)
            if args.dry_run:
                output.one(args, shown, lambda: _effect(shown), name=" ".join(shown["nodes"]))
                return exits.OK
            print(*_effect(shown), sep="\n", file=sys.stderr)
            print("drain? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print("nothing was drained", file=sys.stderr)
                return exits.FAILURE
            done = drain(dry_run=False, if_match=shown["version"])
        else:
            done = drain(dry_run=False)
        output.one(args, done, lambda: _drained(done), name=" ".join(done["nodes"]))
    return exits.OK


def _drained(done: Row) -> Iterable[str]:
    for node, state in zip(done["nodes"], done["states"], strict=True):
        yield f"node {clean.line(node)} {output.paint(str(state))}"


def _effect(shown: Row) -> Iterable[str]:
    """Return what runs there, and what each mode does with it."""
    affects = shown["affects"]
    whose = f" of {', '.join(map(clean.line, affects['owners']))}" if affects["owners"] else ""
    yield units.counted(affects["jobs"], "job runs", "jobs run") + f" there{whose}"
    for one in affects["stages"]:
        lost = units.device_hours(one["lost_device_s"])
        lost += f" since it saved at {units.clock(one['saved_at'])}" if one.get("saved_at") else ", it never saved"
        yield clean.line(f"  job {one['job']} {one['stage']} of {one['user']} on {', '.join(one['nodes'])}: {lost}")
    if affects["hidden"]:
        yield "  and " + units.counted(affects["hidden"], "stage", "stages") + " of jobs that you may not see"
    for each in shown["outcomes"]:
        lost, when = units.device_hours(each["lost_device_s"]), _when(each["empty_in_s"], each["empty_within_s"])
        yield f"{each['mode']:>7}: stops {each['stops']}, loses {lost}, empty {when}"


def _when(expected_s: float | None, within_s: float | None) -> str:
    if within_s == 0:
        return "at once"
    most = "" if within_s is None or within_s == expected_s else f", in {units.span(within_s)} at most"
    return ("nobody knows when" if expected_s is None else f"in {units.span(expected_s)}") + most
