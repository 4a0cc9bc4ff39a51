"""``yard adjust``: changes the resources of a running job in place."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.cli.sizes import size_bytes
from switchyard.cli.spans import seconds
from switchyard.problem import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from switchyard.client import Client

EXAMPLES = """
  yard adjust 42 --pause --reason "a demonstration"      its processes stop where they are; --go-on lets them go on
  yard adjust 42 --stage train --cpu-weight 20 --memory 16GiB
  yard adjust 42 --queue long && yard show 42            behind others on devices that take turns
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("--stage", metavar="NAME", help="only this stage (default: every stage that runs)")
    parser.add_argument("--rank", type=int, action="append", metavar="N", help="only this rank; may be repeated")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--pause", action="store_true", help="stop its processes where they are; they keep their devices"
    )
    either.add_argument("--go-on", action="store_true", help="let them go on")
    parser.add_argument("--cpus", type=_cores, metavar="N", help="cores, such as 2 or 0.5")
    parser.add_argument("--memory", type=size_bytes, metavar="SIZE", help="memory limit, such as 8GiB")
    parser.add_argument("--cpu-weight", type=int, metavar="N", help="1 to 10000; 100 is usual")
    parser.add_argument("--io-weight", type=int, metavar="N", help="1 to 10000; 100 is usual")
    parser.add_argument("--queue", choices=("short", "long", "auto"), help="its class on devices that take turns")
    parser.add_argument("--quantum", type=seconds, metavar="SPAN", help="how long its turns are")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def _cores(text: str) -> int:
    try:
        return round(float(text) * 1000)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cores; write it like 2 or 0.5") from None


def run(args: argparse.Namespace) -> int:
    given = _given(args)
    if not given:
        raise UsageError("say what is to change, such as --pause or --cpu-weight 50")
    with connect(args) as client:
        changed = client.jobs.adjust(args.job, stage=args.stage, ranks=args.rank, reason=args.reason, **given)
        for attempt in changed:
            print(f"{clean.line(attempt['stage'])} attempt {attempt['number']}: {_state(client, args.job, attempt)}")
    if not changed:
        print(
            f"error: nothing of job {clean.line(args.job)} runs that could be adjusted (nothing_runs)", file=sys.stderr
        )
        return exits.CONFLICT
    return exits.OK


def _given(args: argparse.Namespace) -> dict[str, Any]:
    named = {
        "cpus_milli": args.cpus,
        "memory_bytes": args.memory,
        "cpu_weight": args.cpu_weight,
        "io_weight": args.io_weight,
        "quantum_s": args.quantum,
    }
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if args.pause or args.go_on:
        given["suspended"] = args.pause
    if args.queue:
        given["queue_class"] = None if args.queue == "auto" else args.queue
    return given


def _state(client: Client, job: str, attempt: Row) -> str:
    """Return the state of its stage, and the revision that its nodes will apply."""
    stages: Iterable[Row] = client.jobs.get(job).stages
    stage = next((s for s in stages if s.get("name") == attempt["stage"]), {})
    newest = max((part["spec_rev"] for part in attempt["parts"]), default=1)
    return f"{clean.line(stage.get('state', ''))}, revision {newest}"
