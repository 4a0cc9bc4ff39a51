"""``yard maintenance``: lists, plans and cancels maintenance windows of nodes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, recurrence, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    from switchyard.client import Client

EXAMPLES = """
  yard maintenance --node g07 --in 2d --for 4h --reason "fan swap, ticket 311"
  yard maintenance --pool train --cron "0 3 * * 1" --zone Europe/Berlin --for 2h --until 2027-12-31 --reason "updates"
  yard maintenance --cancel 12 && yard maintenance
"""


def options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--node", help="plan a window for this node")
    what.add_argument("--pool", help="plan a window for all nodes of this pool")
    what.add_argument("--change", metavar="ID", type=int, help="change the times or the reason of this window")
    what.add_argument("--cancel", metavar="ID", type=int, help="call this window off")
    recurrence.options(parser)
    parser.add_argument("--reason", default="", help="why; others will ask, and it is shown on the node")
    parser.add_argument("--dry-run", action="store_true", help="tell what it would meet, and plan nothing")
    parser.add_argument("-a", "--all", action="store_true", help="list what has ended or was cancelled, too")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    planned = args.node or args.pool
    if planned and (args.lasts_s is None or not args.reason.strip()):
        raise UsageError("a window needs --for, how long it lasts, and --reason; others will ask")
    if args.change is not None and not (recurrence.is_asked(args) or args.reason.strip()):
        raise UsageError("say what is to change: --reason, or the times with --for")
    if not planned and args.change is None and (recurrence.is_asked(args) or args.dry_run):
        raise UsageError("say with --node or --pool what the window is for")
    with connect(args) as client:
        if args.cancel is not None:
            window = client.maintenance.cancel(args.cancel)
            output.one(args, window, lambda: [f"window {window.get('id')} is cancelled"], name=window.get("id"))
        elif args.change is not None:
            found: Row = client.maintenance.change(args.change, dry_run=args.dry_run, **recurrence.changes(args))
            output.one(args, found, lambda: _lines(found, args.dry_run), name=found["window"]["id"])
        elif planned:
            found = _plan(args, client)
            output.one(args, found, lambda: _lines(found), name=found["window"]["id"])
        else:
            output.many(args, client.maintenance.list(everything=args.all), COLUMNS, name=lambda row: row["id"])
    return exits.OK


def _plan(args: argparse.Namespace, client: Client) -> Row:
    times = recurrence.entry(args)
    return client.maintenance.plan(
        times.pop("starts_at"),
        times.pop("ends_at"),
        args.reason,
        node=args.node or "",
        pool=args.pool or "",
        dry_run=args.dry_run,
        **times,
    )


def _lines(found: Row, is_tried: bool = False) -> Iterable[str]:
    """Return the window, and each stage that may run into it."""
    window = found["window"]
    planned = f"window {window['id']} is planned" if window["id"] and not is_tried else "nothing was planned"
    yield f"{planned}: {_of(window)} from {window['starts_at']} to {window['ends_at']}"
    if window.get("cron"):
        yield clean.line(f"  each time of {window['cron']} ({window['time_zone']}), for {window['lasts_s']} s")
    for one in found.get("affects") or []:
        until = f"until {one['ends_by']} at most" if one.get("ends_by") else "without a time limit"
        yield clean.line(f"  job {one['job']} {one['stage']} of {one['user']} runs on {one['node']} {until}")
    if found.get("hidden"):
        yield "  and " + units.counted(found["hidden"], "stage", "stages") + " of jobs that you may not see"


def _of(window: Row) -> str:
    return clean.line(f"node {window['node']}" if window.get("node") else f"pool {window.get('pool')}")


COLUMNS = (
    Column("ID", lambda w: w["id"], right=True),
    Column("OF", _of),
    Column("STARTS", lambda w: w.get("starts_at")),
    Column("ENDS", lambda w: w.get("ends_at")),
    Column("AGAIN", lambda w: w.get("cron") or ""),
    Column("BY", lambda w: w.get("made_by")),
    Column("CANCELLED BY", lambda w: w.get("cancelled_by"), wide=True),
    Column("REASON", lambda w: w.get("reason")),
)
