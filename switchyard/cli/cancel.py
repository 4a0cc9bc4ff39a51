"""``yard cancel``: ends jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from switchyard.cli import exits, several
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard cancel 42                              asked once on a terminal when there are several
  yard cancel 42 43 --reason "wrong data"
  yard cancel -y --filter user=me --filter label=sweep=7
"""


def options(parser: argparse.ArgumentParser) -> None:
    several.options(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    many = len(args.jobs) > 1 or args.filter
    if many and not args.yes and not args.dry_run and sys.stdin.isatty() and sys.stderr.isatty():
        which = f"{len(args.jobs)} jobs" if args.jobs else "all jobs that match"
        print(f"cancel {which}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was cancelled", file=sys.stderr)
            return exits.FAILURE
    with connect(args) as client:
        return several.run(client, args, "cancel")
