"""``yard run``: queues a job, shows its output and exits with its code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from switchyard.cli import clean, demand, units
from switchyard.cli.attach import attach
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

TAKES_COMMAND = True
EXAMPLES = """
  yard run -- python train.py                  run a script of this folder
  yard run --devices gpu --time 10m -- nvidia-smi
  yard run job.yaml && echo it completed
"""


def options(parser: argparse.ArgumentParser) -> None:
    demand.options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show the job's own output only")
    parser.add_argument("--raw", action="store_true", help="pass escape sequences of the output to the terminal")


def run(args: argparse.Namespace) -> int:
    spec = demand.spec_of(args)
    with connect(args) as client:
        bundle = demand.pack(spec, quiet=args.quiet)
        job = client.jobs.submit(spec, workdir=bundle, idempotency_key=args.idempotency_key)
        if not args.quiet:
            reason = units.reason(job.get("reason"))
            waits = f" waits: {clean.line(reason)}" if reason and job.state == "PENDING" else ""
            print(f"job {job.number} ({clean.line(job.name)}){waits}", file=sys.stderr, flush=True)
        return attach(client, job, raw=args.raw, quiet=args.quiet)
