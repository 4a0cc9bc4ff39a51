"""``yard hold``: holds jobs, so that they do not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.session import connect
from switchyard.cli.several import each

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard hold 42 --reason "waits for the new data set"
  yard hold $(yard ps -q -s PENDING)      all that wait
  yard hold 42 && yard show 42
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="job", help="numbers or ids")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return each(args.jobs, lambda job: client.jobs.hold(job, args.reason))
