"""``yard timeline``: lists who held, holds and will hold each device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.cli.spans import seconds

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard timeline                          an hour back and an hour ahead, device by device
  yard timeline --since 1d --node g0     of a day, on nodes with g0 in their names
  yard timeline --pool train -o jsonl
"""

MOST_NODES = 1000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=seconds, default=3600.0, metavar="SPAN", help="how far back: 30m, 12h, 2d (1h)")
    parser.add_argument("--until", type=seconds, default=3600.0, metavar="SPAN", help="how far ahead (1h)")
    parser.add_argument("--pool", default="", help="only nodes of this pool")
    parser.add_argument("--node", default="", metavar="PART", help="only nodes with this part in their names")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.timeline(args.since, args.until, pool=args.pool, node=args.node, nodes=MOST_NODES)
    lanes = {lane["device"]: lane for lane in found["lanes"]}
    rows = [_row(segment, lanes[segment["lane"]]) for segment in found["segments"] if segment["lane"] in lanes]
    output.many(args, sorted(rows, key=_place), COLUMNS, name=lambda segment: segment["lane"])
    if found["truncated"]:
        print("there is more than is shown: name a --pool or --node, or a shorter span", file=sys.stderr)
    return exits.OK


def _row(segment: Row, lane: Row) -> Row:
    """Return the segment with the place of its device."""
    return {**segment, "node": lane["node"], "device_kind": lane["kind"], "index": lane["index"]}


def _place(row: Row) -> tuple[str, bool, str, int, str]:
    """Return the sort key: by node (n2 before n10), accelerators before CPUs, by index and time."""
    return units.natural(row["node"]), row["device_kind"] == "cpu", row["device_kind"], row["index"], row["start_at"]


def _ends(row: Row) -> str:
    """Return when it ended or is expected to, the latter with a tilde."""
    if row["end_at"] and not row["planned"]:
        return units.clock(row["end_at"])
    expected = row["end_at"] or row["expected_end_at"]
    return f"~{units.clock(expected)}" if expected else ""


COLUMNS = (
    Column("NODE", lambda s: s["node"]),
    Column("DEVICE", lambda s: f"{s['device_kind']}{s['index']}"),
    Column("SHARE", lambda s: f"{s['milli'] / 1000:g}", right=True),
    Column("JOB", lambda s: s["job"], right=True),
    Column("NAME", lambda s: s["name"]),
    Column("STAGE", lambda s: s["stage"]),
    Column("STATE", lambda s: "PLANNED" if s["planned"] else s["state"]),
    Column("FROM", lambda s: units.clock(s["start_at"])),
    Column("TO", _ends),
    Column("CAUSE", lambda s: s["cause"], wide=True),
    Column("PROJECT", lambda s: s["project"], wide=True),
    Column("USER", lambda s: s["user"], wide=True),
    Column("OVERDUE SINCE", lambda s: units.clock(s["overdue_since_at"]) if s["overdue_since_at"] else "", wide=True),
)
