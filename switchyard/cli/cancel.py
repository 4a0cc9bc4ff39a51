"""``yard cancel``: ends jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from switchyard.cli import exits
from switchyard.cli.session import connect
from switchyard.cli.several import each

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard cancel 42                              asked once on a terminal when there are several
  yard cancel 42 43 --reason "wrong data"
  yard cancel -y $(yard ps -q)                all your open jobs
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="job", help="numbers or ids")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    if len(args.jobs) > 1 and not args.yes and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"cancel {len(args.jobs)} jobs? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was cancelled", file=sys.stderr)
            return exits.FAILURE
    with connect(args) as client:
        return each(args.jobs, lambda job: client.jobs.cancel(job, args.reason))
