"""``yard wait``: waits for jobs to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import ending
from switchyard.cli.connection import connect
from switchyard.cli.spans import seconds

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard wait 42                       exits with the code of job 42
  yard wait 42 43 --timeout 2h       7 when one has not ended by then
  yard wait $(yard submit -q job.yaml) && echo it completed
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="job", help="numbers or ids")
    parser.add_argument(
        "--timeout", type=seconds, metavar="SPAN", help="give up after this: 90s, 30m, 2h; the jobs go on"
    )
    parser.add_argument("--watch", action="store_true", help="tell every change of state")
    parser.add_argument("-q", "--quiet", action="store_true", help="tell nothing; the exit code says it")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return ending.wait(client, args.jobs, timeout_s=args.timeout, tell=args.watch, quiet=args.quiet)
