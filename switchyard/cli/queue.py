"""``yard queue``: lists waiting jobs with their places, expected starts and reasons."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = """
  yard queue                     what waits, in its order
  yard queue --pool train -n 10  the first ten of a pool
  yard queue -o jsonl            for programs
"""
MOST = 500


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool", help="only the jobs that wait in this pool")
    parser.add_argument("-n", "--limit", metavar="N", type=_limit, default=50, help="at most so many (50), up to 500")
    output.options(parser)


def _limit(text: str) -> int:
    if text.isdecimal() and 1 <= int(text[:6]) <= MOST:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST}")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.jobs.queue(pool=args.pool, limit=args.limit)
    output.many(args, found["results"], COLUMNS, name=lambda one: units.number(one["job"]))
    if found["total"] > len(found["results"]):
        print(f"{len(found['results'])} of {found['total']} are shown; -n shows more", file=sys.stderr)
    return exits.OK


def _of_job(say: Callable[[Row], object]) -> Callable[[Row], object]:
    return lambda one: say(one["job"])


def _stage(job: Row) -> dict[str, Any]:
    """Return the waiting stage that tells most: the first with a reason of its own."""
    waiting = [each for each in job.get("stages") or [] if each.get("state") in ("PENDING", "HELD")]
    told = [each for each in waiting if (each.get("reason") or {}).get("code") not in (None, "DependencyPending")]
    return next(iter(told or waiting), {})


def _expected(job: Row) -> str:
    expected = _stage(job).get("expected_start")
    return f"{units.clock(expected['low_at'])} – {units.clock(expected['high_at'])}" if expected else "unknown"


COLUMNS = (
    Column("PLACE", lambda one: one.get("place") or "held", right=True),
    Column("JOB", _of_job(units.number), right=True),
    Column("NAME", _of_job(lambda job: job.get("name"))),
    Column("USER", _of_job(lambda job: job.get("user"))),
    Column("PROJECT", _of_job(lambda job: job.get("project")), wide=True),
    Column("POOL", _of_job(lambda job: job.get("pool"))),
    Column("PRIORITY", _of_job(lambda job: (job.get("priority") or {}).get("class"))),
    Column("WAITING", _of_job(lambda job: units.span(units.since(job.get("submitted_at"), None))), right=True),
    Column("EXPECTED", _of_job(_expected)),
    Column("WHO CAN ACT", _of_job(lambda job: (_stage(job).get("reason") or {}).get("acts")), wide=True),
    Column("WHY", _of_job(lambda job: units.reason(job.get("reason")))),
)
