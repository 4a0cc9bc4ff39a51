"""``yard survivors``: lists, stops and forgets parts on nodes that a restored database does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard survivors
  yard survivors stop 5f1c0f0e-5a4e-4d7e-9a53-0c2f5d1b8c11 --reason "its job was submitted anew"
  yard survivors forget 5f1c0f0e-5a4e-4d7e-9a53-0c2f5d1b8c11
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=("list", "stop", "forget"), default="list", help="list if not told"
    )
    parser.add_argument("part", nargs="?", help="the part, as the list names it")
    parser.add_argument("--reason", default="", help="why; a stop needs one, for others will ask")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") == bool(args.part):
        raise UsageError("stop and forget need the part, and the list takes none")
    if args.action == "stop" and not args.reason.strip():
        raise UsageError("a stop needs --reason; others will ask")
    with connect(args) as client:
        if args.action == "list":
            output.many(args, client.nodes.survivors(), COLUMNS, name=lambda row: row["part"])
            return exits.OK
        told = client.nodes.end_survivor(args.part, args.action, args.reason)
        done = "is to end" if args.action == "stop" else "is forgotten with its node's next report"
        output.one(args, told, lambda: [clean.line(f"part {args.part} {done}")], name=args.part)
    return exits.OK


def _state(row: Row) -> str:
    if row.get("ended"):
        return "ended"
    return "is to end" if row.get("stopped_by") else "runs"


COLUMNS = [
    Column("PART", lambda row: row.get("part")),
    Column("NODE", lambda row: row.get("node")),
    Column("STATE", _state),
    Column("PID", lambda row: row.get("pid")),
    Column("SINCE", lambda row: row.get("since")),
    Column("STOPPED BY", lambda row: row.get("stopped_by")),
    Column("DEVICES", lambda row: ",".join(row.get("devices") or []), wide=True),
]
