"""``yard calendar``: lists when nodes are out of service or reserved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from switchyard.cli import exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column
from switchyard.cli.recurrence import moment

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard calendar
  yard calendar --days 14 --pool train
  yard calendar --from 2027-01-01 --days 31 --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="since", metavar="TIME", type=moment, help="from when on (now if not told)")
    parser.add_argument("--days", type=int, default=28, help="so many days (28)")
    parser.add_argument("--pool", default="", help="only what keeps nodes of this pool")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    since = args.since or datetime.now(UTC)
    with connect(args) as client:
        found = client.calendar(since, since + timedelta(days=args.days), pool=args.pool)
        output.many(args, found["results"], COLUMNS, name=lambda row: row["name"] or row["id"])
    return exits.OK


COLUMNS = (
    Column("WHAT", lambda r: r["kind"]),
    Column("NAME", lambda r: r["name"] or r["id"]),
    Column("FOR", lambda r: r.get("project") or ""),
    Column("NODES", lambda r: f"pool {r['pool']}" if r.get("pool") else ",".join(r.get("nodes") or ())),
    Column("STARTS", lambda r: r.get("starts_at")),
    Column("ENDS", lambda r: r.get("ends_at")),
    Column("REASON", lambda r: r.get("reason")),
)
