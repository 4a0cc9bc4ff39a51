"""``yard logs``: shows the output of a job."""

from __future__ import annotations

import argparse
import sys

from switchyard.cli import clean, exits
from switchyard.cli.printer import Printer
from switchyard.cli.session import connect

EXAMPLES = """
  yard logs 42                      all output of the newest attempt of each stage
  yard logs -f 42 --tail 20         the last 20 lines, then what follows
  yard logs 42 --stage train --attempt 1 --rank all --stream err
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends; Ctrl-C only detaches")
    parser.add_argument("--stage", help="only this stage")
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="only this attempt; the default is the newest of each stage"
    )
    parser.add_argument("--rank", type=_rank, default=0, metavar="N", help="the rank of the node, or all (0)")
    parser.add_argument("--stream", choices=("out", "err", "both"), default="both", help="which output (both)")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each stream")
    parser.add_argument(
        "--raw", action="store_true", help="pass escape sequences to the terminal; only for jobs you trust"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per piece: stage, attempt, rank, stream, text"
    )


def run(args: argparse.Namespace) -> int:
    from switchyard.logs import LogQuery

    wanted = LogQuery(args.stage, args.attempt, args.rank, args.stream)
    with connect(args) as client:
        job = client.jobs.get(args.job)
        names = [stage["name"] for stage in job.stages]
        if args.stage and args.stage not in names:
            known = clean.line(", ".join(names))
            print(f"error: job {job.number} has no stage {args.stage!r}; it has {known} (not_found)", file=sys.stderr)
            return exits.NOT_FOUND
        printer = Printer(prefixed=args.rank is None or (args.stage is None and len(names) > 1), raw=args.raw)
        wrote = False
        try:
            for chunk in client.jobs.chunks(job, wanted, tail=args.tail, follow=args.follow):
                wrote = True
                if args.json:
                    print(clean.escaped({name: getattr(chunk, name) for name in chunk.__slots__}), flush=True)
                else:
                    printer.write(chunk)
        except KeyboardInterrupt:
            if args.follow:
                print(f"\ndetached; job {job.number} goes on", file=sys.stderr)
            return exits.INTERRUPTED
        if not wrote and not args.json:
            print(f"job {job.number} has printed nothing there yet ({job.state})", file=sys.stderr)
    return exits.OK


def _rank(text: str) -> int | None:
    if text == "all":
        return None
    if text.isdecimal() and len(text) < 10:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a rank such as 0 nor all")
