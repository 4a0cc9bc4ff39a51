"""``yard logs``: shows the output of a job."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits
from switchyard.cli.connection import connect
from switchyard.cli.printer import Printer
from switchyard.problem import UsageError

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord
    from switchyard.logs import LogQuery

EXAMPLES = """
  yard logs 42                      all output of the newest attempt of each stage
  yard logs -f 42 --tail 20         the last 20 lines, then what follows
  yard logs 42 --stage train --attempt 1 --rank all --grep "out of memory" -i
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
        "--grep", metavar="TEXT", help="only lines that contain TEXT, which the server looks for; it is no pattern"
    )
    parser.add_argument("-i", "--ignore-case", action="store_true", help="with --grep: a is A, for letters of ASCII")
    parser.add_argument(
        "--raw", action="store_true", help="pass escape sequences to the terminal; only for jobs you trust"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object per piece: stage, attempt, rank, stream, text; with --grep offset and line for text",
    )


def run(args: argparse.Namespace) -> int:
    from switchyard.logs import LogQuery

    wanted = LogQuery(args.stage, args.attempt, args.rank, args.stream)
    if args.grep is not None and (args.follow or args.tail is not None):
        raise UsageError("--grep looks at the whole log; leave out --follow and --tail")
    with connect(args) as client:
        job = client.jobs.get(args.job)
        names = [stage["name"] for stage in job.stages]
        if args.stage and args.stage not in names:
            known = clean.line(", ".join(names))
            print(f"error: job {job.number} has no stage {args.stage!r}; it has {known} (not_found)", file=sys.stderr)
            return exits.NOT_FOUND
        if args.grep is not None:
            return _grep(client, job, wanted, args)
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


def _grep(client: Client, job: JobRecord, wanted: LogQuery, args: argparse.Namespace) -> int:
    """Prints the lines that were found, each behind the place of its match; fails where there is none, as grep does."""
    found = False
    for one in client.jobs.search(job, args.grep, wanted, ignore_case=args.ignore_case):
        found = True
        if args.json:
            print(clean.escaped({name: getattr(one, name) for name in one.__slots__}), flush=True)
            continue
        where = f"{one.stage}.{one.attempt}.{one.rank}.{one.stream}:{one.offset}"
        print(f"{clean.line(where)}: {one.line if args.raw else clean.line(one.line)}", flush=True)
    return exits.OK if found else exits.FAILURE


def _rank(text: str) -> int | None:
    if text == "all":
        return None
    if text.isdecimal() and len(text) < 10:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a rank such as 0 nor all")
