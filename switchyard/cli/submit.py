"""``yard submit``: queues a job and prints its number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, demand, ending, exits, units
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

TAKES_COMMAND = True
EXAMPLES = """
  yard submit job.yaml                                    queue what the file describes
  yard submit --devices gpu:2 --time 4h -- python train.py --lr 3e-4
  yard submit job.yaml --set stages.train.time_limit=1h --dry-run
"""


def options(parser: argparse.ArgumentParser) -> None:
    demand.options(parser)
    parser.add_argument("--dry-run", action="store_true", help="tell where and when it would start; queue nothing")
    parser.add_argument("--wait", action="store_true", help="wait for its end and exit with its code")
    parser.add_argument("--watch", action="store_true", help="the same, and tell every change of state")
    parser.add_argument("-o", "--output", choices=("json", "yaml", "name"), metavar="FORMAT", help="json, yaml or name")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")


def run(args: argparse.Namespace) -> int:
    spec = demand.spec_of(args)
    with connect(args) as client:
        if args.dry_run:
            found = client.preview(spec)
            _print(args, found, preview(found))
            return exits.OK
        bundle = demand.pack(spec, quiet=args.quiet)
        job = client.jobs.submit(spec, workdir=bundle, idempotency_key=args.idempotency_key)
        if args.quiet or args.output == "name":
            print(job.number, flush=True)
        else:
            _print(args, job, iter([f"submitted job {job.number} ({clean.line(job.name)})"]))
        if not (args.wait or args.watch):
            return exits.OK
        return ending.wait(client, [job.number], timeout_s=None, tell=args.watch)


def preview(found: dict[str, Any]) -> Iterator[str]:
    """A dry run as text: each stage with its place, its start and its reasons, then warnings."""
    for stage in found.get("stages") or []:
        yield f"{clean.line(stage.get('name', '?'))}: {clean.line(stage.get('asks') or '')}".rstrip(": ")
        where = units.placed(stage) or clean.line(stage.get("where") or "")
        if where:
            yield f"  would start now on {clean.line(where)}"
        if stage.get("why_here"):
            yield f"  {clean.line(stage['why_here'])}"
        reasons = stage.get("reasons") or ([stage["reason"]] if stage.get("reason") else [])
        yield from (f"  would wait: {clean.line(units.reason(reason))}" for reason in reasons)
        if expected := stage.get("expected_start"):
            yield f"  expected start {units.clock(expected.get('low_at'))} to {units.clock(expected.get('high_at'))}"
    for key in ("warnings", "suggestions", "preemptions"):
        for item in found.get(key) or []:
            yield f"{key[:-1]}: {clean.line(item if isinstance(item, str) else units.reason(item) or json.dumps(item))}"


def _print(args: argparse.Namespace, thing: dict[str, Any], text: Iterator[str]) -> None:
    if args.output in ("json", "yaml"):
        from switchyard.cli import output

        output.one(args, thing, list)
        return
    lines = list(text)
    print("\n".join(lines) if lines else json.dumps(thing, indent=2, ensure_ascii=False), flush=True)
