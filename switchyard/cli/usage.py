"""``yard usage``: tells who used which devices for how long, what was lost, and what it costs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from switchyard.cli import exits, output, spans
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

EXAMPLES = """
  yard usage                                   your projects over the last 30 days
  yard usage --by job -p vision --from 7d --limit 20
  yard usage --by project,user --from 2027-01-01 --to 2027-01-31 --csv > january.csv
"""

GROUPS = ("day", "project", "user", "job", "pool", "model")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", default="project", metavar="GROUPS", help=f"some of {','.join(GROUPS)}, with commas (project)"
    )
    parser.add_argument(
        "--from",
        dest="first",
        type=_day,
        metavar="DAY",
        help="first UTC day, such as 2027-01-01, or so long ago, such as 7d; 30 days if not told",
    )
    parser.add_argument("--to", dest="last", type=_day, metavar="DAY", help="last UTC day, included; today if not told")
    parser.add_argument("-p", "--project", default="", help="of this project only")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="by job, of so many jobs: those that were charged most; 1000 if not told, at most 10000",
    )
    parser.add_argument("--csv", action="store_true", help="as CSV, for accounting")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    wanted = {"by": args.by, "first": args.first, "last": args.last, "project": args.project, "limit": args.limit}
    with connect(args) as client:
        if args.csv:
            sys.stdout.write(client.usage_csv(**wanted))
            return exits.OK
        found = client.usage(**wanted)
    output.many(args, found["results"], columns(found), name=lambda row: _name(row, found["by"]))
    if rest := [f"{_number(row['allocated_device_s'] / 3600)} h of {row['kind']}" for row in found.get("rest", [])]:
        print(f"{_others(found)} used {', '.join(rest)}", file=sys.stderr)
    if found.get("is_cut"):
        print("there are more rows: ask for fewer days or groups", file=sys.stderr)
    if not found.get("is_complete", True):
        print("not all of these days are counted yet", file=sys.stderr)
    return exits.OK


def columns(found: Row) -> list[Column]:
    """Return the columns of this answer: its groups, then times in hours, energy and cost."""
    fields = [(name.upper(), name) for name in GROUPS if name in found["by"]]
    if "job" in found["by"]:
        fields.insert(fields.index(("JOB", "job")) + 1, ("NAME", "job_name"))
    groups = [Column(title, _field(name)) for title, name in fields]
    return [
        *groups,
        Column("KIND", _field("kind")),
        Column("HOURS", _hours("allocated_device_s"), right=True),
        Column("BUSY", _hours("busy_device_s"), right=True),
        Column("IDLE", _hours("idle_device_s"), right=True),
        Column("UNKNOWN", _hours("unknown_device_s"), right=True),
        Column("LOST", lambda row: _number((row["lost_preempted_device_s"] + row["lost_failed_device_s"]) / 3600),
               right=True),
        Column("PREEMPTED", _hours("lost_preempted_device_s"), right=True, wide=True),
        Column("FAILED", _hours("lost_failed_device_s"), right=True, wide=True),
        Column("CHARGED", _hours("charged_device_s"), right=True, wide=True),
        Column("ATTEMPTS", _field("attempts"), right=True, wide=True),
        Column("KWH", lambda row: None if row["energy_j"] is None else _number(row["energy_j"] / 3.6e6), right=True),
        Column("CO2 KG", lambda row: None if row["co2_g"] is None else _number(row["co2_g"] / 1000), right=True,
               wide=True),
        Column(found.get("currency") or "COST", lambda row: None if row["cost"] is None else f"{row['cost']:.2f}",
               right=True),
    ]  # fmt: skip


def _others(found: Row) -> str:
    """Who used the rest: the jobs that are not told, and those that are no longer there."""
    others = (found.get("job_count") or 0) - len({row["job"] for row in found["results"]})
    return f"{others} other jobs, and those that are no longer there," if others else "jobs that are no longer there"


def _name(row: Row, by: list[str]) -> str:
    return "/".join(str(row[name]) for name in GROUPS if name in by) or str(row["kind"])


def _field(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name)


def _hours(name: str) -> Callable[[Row], str]:
    return lambda row: _number(row[name] / 3600)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _day(text: str) -> str:
    """Parse a day, or a span before today, into a day; raises ``ArgumentTypeError`` for anything else."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            raise argparse.ArgumentTypeError(f"there is no day {text!r}") from None
    try:
        return (datetime.now(UTC) - timedelta(seconds=spans.seconds(text))).date().isoformat()
    except (argparse.ArgumentTypeError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no day; write it like 2027-01-31 or 7d") from None
