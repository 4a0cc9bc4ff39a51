"""``yard reserve``: lists, plans and cancels reservations of nodes for a project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, recurrence
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard reserve demo --project vision --node g07 --node g08 --in 2d --for 4h --reason "the demonstration"
  yard reserve course --project teach --pool train --device H100 --count 16 --in 2d --for 3h --reason "the course"
  yard reserve demo --cancel && yard reserve
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the name that jobs give as `reservation`")
    parser.add_argument("--project", help="whose jobs may use it")
    parser.add_argument("--user", action="append", default=[], help="only this user of the project; repeat for more")
    parser.add_argument("--node", action="append", default=[], help="reserve this node; repeat for more")
    parser.add_argument("--pool", default="", help="reserve nodes of this pool")
    parser.add_argument("--device", default="", help="with devices of this kind or model, such as gpu or H100")
    parser.add_argument("--count", type=int, help="as many whole nodes as have so many of these devices")
    recurrence.options(parser)
    parser.add_argument("--change", action="store_true", help="change its times, reason, nodes or users")
    parser.add_argument("--cancel", action="store_true", help="cancel this reservation")
    parser.add_argument("--reason", default="", help="what for; it is shown to those who wait")
    parser.add_argument("--dry-run", action="store_true", help="tell which nodes it would have, and plan nothing")
    parser.add_argument("-a", "--all", action="store_true", help="list what has ended or was cancelled, too")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.name is None:
            output.many(args, client.reservations.list(everything=args.all), COLUMNS, name=lambda row: row["name"])
        elif args.cancel:
            gone = client.reservations.cancel(args.name)
            output.one(args, gone, lambda: [f"reservation {clean.line(args.name)} is cancelled"], name=args.name)
        elif args.change:
            told = recurrence.changes(args) | {key: each for key, each in _named(args).items() if each}
            made: Row = client.reservations.change(args.name, dry_run=args.dry_run, **told)
            output.one(args, made, lambda: _planned(args, made), name=args.name)
        elif args.project is None:
            found = client.reservations.get(args.name)
            output.one(args, found, lambda: _lines(found), name=args.name)
        else:
            made = _plan(args, client)
            output.one(args, made, lambda: _planned(args, made), name=args.name)
    return exits.OK


def _named(args: argparse.Namespace) -> dict[str, list[str]]:
    return {"nodes": args.node, "users": args.user}


def _plan(args: argparse.Namespace, client: Any) -> Row:
    if not args.reason.strip():
        raise UsageError("a reservation needs --reason; others will ask")
    times = recurrence.entry(args)
    what = {"nodes": args.node, "pool": args.pool, "device": args.device, "count": args.count, "users": args.user}
    made: Row = client.reservations.plan(
        args.name, args.project, reason=args.reason, dry_run=args.dry_run, **times, **what
    )
    return made


def _planned(args: argparse.Namespace, made: Row) -> Iterable[str]:
    yield "nothing was planned" if args.dry_run else f"reservation {clean.line(made['name'])} is planned"
    yield from _lines(made)


def _lines(one: Row) -> Iterable[str]:
    who = f" ({', '.join(one['users'])})" if one["users"] else ""
    yield clean.line(f"project {one['project']}{who}: {one['reason']}")
    yield clean.line(f"nodes {', '.join(one['nodes'])}")
    yield f"from {one['next_starts_at']} to {one['next_ends_at']}"
    if one["cron"]:
        yield clean.line(f"again by {one['cron']} ({one['time_zone']}) until {one['ends_at']}")


COLUMNS = (
    Column("NAME", lambda r: r["name"]),
    Column("PROJECT", lambda r: r.get("project")),
    Column("NODES", lambda r: ",".join(r.get("nodes") or ())),
    Column("STARTS", lambda r: r.get("next_starts_at")),
    Column("ENDS", lambda r: r.get("next_ends_at")),
    Column("AGAIN", lambda r: r.get("cron") or ""),
    Column("USERS", lambda r: ",".join(r.get("users") or ()), wide=True),
    Column("BY", lambda r: r.get("made_by"), wide=True),
    Column("CANCELLED BY", lambda r: r.get("cancelled_by"), wide=True),
    Column("REASON", lambda r: r.get("reason")),
)
