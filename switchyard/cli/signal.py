"""``yard signal``: sends a signal to the running stages of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard signal 42 USR1                              such as a trainer that saves by it
  yard signal 42 SIGINT --stage train
  yard signal 42 HUP --reason "read the settings again"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("signal", type=_name, help="HUP, INT, QUIT, ABRT, USR1, USR2, TERM, CONT, ALRM or WINCH")
    parser.add_argument("--stage", metavar="NAME", default="", help="only this stage (default: every stage that runs)")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def _name(text: str) -> str:
    word = text.upper()
    return word if word.startswith("SIG") else f"SIG{word}"


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        told = client.jobs.signal(args.job, args.signal, stage=args.stage, reason=args.reason)
    count = told["processes"]
    print(
        f"{clean.line(args.signal)} goes to {count} {'process' if count == 1 else 'processes'} of job {told['number']}"
    )
    return exits.OK
