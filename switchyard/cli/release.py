"""``yard release``: releases held jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.session import connect
from switchyard.cli.several import each

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard release 42
  yard release $(yard ps -q -s HELD)      all that you hold
  yard release 42 --reason "data is there"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="job", help="numbers or ids")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return each(args.jobs, lambda job: client.jobs.release(job, args.reason))
