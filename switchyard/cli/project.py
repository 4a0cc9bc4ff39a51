"""``yard project``: lists projects, changes them, gives people roles in them, and tells how long records stay."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

EXAMPLES = """
  yard project show vision                          its weight, its members and what it is for
  yard project member vision ann --role lead        viewer, member or lead; --role none takes it away
  yard project keep vision --days logs=14           how long its records are kept; without --days it is only told
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "show", "add", "change", "delete", "member", "keep")
    )
    parser.add_argument("name", nargs="?", default="", help="the project")
    parser.add_argument("user", nargs="?", default="", help="for member: whose role")
    parser.add_argument("--role", choices=("viewer", "member", "lead", "none"), help="for member: none takes it away")
    parser.add_argument("--weight", type=float, metavar="N", help="its fair share beside other projects; 1 is usual")
    parser.add_argument("--description", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "--days",
        type=_days,
        action="append",
        metavar="KIND=N",
        help="for keep: keep this kind of records so many days; KIND=usual for as many as everywhere",
    )
    output.options(parser)


def _days(text: str) -> tuple[str, int | None]:
    kind, equals, days = text.partition("=")
    if not equals or not kind or not (days == "usual" or days.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not like logs=14 or logs=usual")
    return kind, None if days == "usual" else int(days)


def run(args: argparse.Namespace) -> int:
    if fault := _fault(args):
        raise UsageError(fault)
    settings = {name: getattr(args, name) for name in ("weight", "description") if getattr(args, name) is not None}
    with connect(args) as client:
        if args.action == "list":
            rows = (row for row in client.projects.list() if args.name in ("", row["name"]))
            output.many(args, rows, COLUMNS, name=lambda row: row["name"])
            return exits.OK
        if args.action == "show":
            found = next((row for row in client.projects.list() if row["name"] == args.name), None)
            if found is None:
                raise NotFound(f"you see no project {args.name}; `yard project list` lists them")
            output.one(args, found, lambda: _lines(found), name=args.name)
            return exits.OK
        if args.action == "keep":
            kept = (
                client.projects.keep(args.name, dict(args.days)) if args.days else client.projects.retention(args.name)
            )
            output.many(args, kept["rules"], KEPT, name=lambda rule: rule["kind"])
            return exits.OK
        told: Row = {"name": args.name}
        if args.action == "add":
            told = client.projects.create({"name": args.name, **settings})
        elif args.action == "change":
            told = client.projects.change(args.name, settings)
        elif args.action == "delete":
            client.projects.delete(args.name)
        elif args.role == "none":
            client.projects.remove_member(args.name, args.user)
        else:
            told = client.projects.set_member(args.name, args.user, args.role)
        output.one(args, told, lambda: [clean.line(_sentence(args))], name=args.name)
    return exits.OK


def _fault(args: argparse.Namespace) -> str:
    """Return what is missing, or an empty text."""
    if args.action != "list" and not args.name:
        return f"say which project: yard project {args.action} NAME"
    if args.action == "member" and not (args.user and args.role):
        return "say who and which role: yard project member NAME USER --role member"
    if args.days and args.action != "keep":
        return "--days is for yard project keep NAME"
    if args.action == "change" and args.weight is None and args.description is None:
        return "say what is to change: --weight or --description"
    return ""


def _lines(project: Row) -> Iterator[str]:
    yield clean.line(f"project {project['name']}: {project['description'] or 'no description'}")
    yield f"  weight   {project['weight']:g}"
    yield f"  you      {project['role'] or 'no role'}"
    yield f"  lost     {units.span(project['lost_device_s'])} of devices to preemption and moves, in 30 days"
    for member in project["members"]:
        yield clean.line(f"  {member['role']:<8} {member['user']}")


def _sentence(args: argparse.Namespace) -> str:
    if args.action == "member":
        return (
            f"{args.user} has " + (f"the role {args.role}" if args.role != "none" else "no role") + f" in {args.name}"
        )
    done = {"add": "was added", "change": "was changed", "delete": "was deleted"}[args.action]
    return f"project {args.name} {done}"


COLUMNS = (
    Column("PROJECT", lambda one: one["name"]),
    Column("WEIGHT", lambda one: f"{one['weight']:g}", right=True),
    Column("YOU", lambda one: one["role"]),
    Column("MEMBERS", lambda one: ", ".join(f"{each['user']} ({each['role']})" for each in one["members"])),
    Column("FOR", lambda one: one["description"]),
)
KEPT = (
    Column("RECORDS", lambda rule: rule["kind"]),
    Column("DAYS", lambda rule: "for ever" if rule["days"] is None else rule["days"], right=True),
    Column("OWN", lambda rule: rule["own_days"], right=True),
    Column("LEAST", lambda rule: rule["least_days"], right=True),
)
