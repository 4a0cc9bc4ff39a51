"""``yard consolidate``: shows which running stages could move so that a waiting one fits; follows such advice."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column

EXAMPLES = """
  yard consolidate                  who could move, for whom, and what that costs
  yard consolidate --json           the same for a program
  yard consolidate --follow 12      move those who stand in the way of job 12
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", metavar="JOB", type=int, help="follow the advice that makes room for this job")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.consolidation.get()
        if args.follow is None:
            if found.get("too_large"):
                print("too many stages wait to think of moves now", file=sys.stderr)
            output.many(args, found["advice"], COLUMNS, name=lambda one: one["stage"])
            return exits.OK
        mine = next((one for one in found["advice"] if one["stage"].startswith(f"#{args.follow}/")), None)
        if mine is None:
            print(f"error: no move makes room for job {args.follow} now", file=sys.stderr)
            return exits.CONFLICT
        done = client.consolidation.follow(mine["id"])
        output.one(args, done, lambda: [f"{_moves(done)} now, for {clean.line(done['stage'])}"], name=done["stage"])
    return exits.OK


def _moves(one: Mapping[str, Any]) -> str:
    """Format the moves: ``#7/train moves from a to b``."""
    return clean.line(
        ", ".join(f"{m['stage']} moves from {' '.join(m['nodes'])} to {' '.join(m['to'])}" for m in one["moves"])
    )


COLUMNS = (
    Column("FOR", lambda one: one["stage"]),
    Column("ON", lambda one: " ".join(one["nodes"])),
    Column("MOVES", _moves),
    Column("PRICE", lambda one: f"{one['price']:.0f}", right=True),
    Column("GAIN", lambda one: f"{one['gain']:.0f}", right=True),
    Column("WORTH IT", lambda one: "yes" if one["worth"] else "no"),
)
