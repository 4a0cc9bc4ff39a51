"""``yard site``: lists, shows, adds and changes other clusters to which jobs may leave, and lists our jobs there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.cli.pool import setting
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard site add berlin --set url=https://yard.berlin.example.org && yard site token berlin <token
  yard site && yard site jobs berlin
  yard site give-up berlin --reason "its operators say that all of it was switched off"
"""
ACTIONS = ("list", "show", "add", "change", "delete", "token", "jobs", "give-up")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS)
    parser.add_argument("name", nargs="?", default="", help="the site")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="for add and change: a field of the REST interface, such as price=2; may be repeated",
    )
    parser.add_argument("--reason", default="", help="for give-up: how you know that nothing of ours runs there")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.action != "list" and not args.name:
        raise UsageError(f"say which site: yard site {args.action} NAME")
    settings: dict[str, Any] = dict(setting(text) for text in args.set)
    if bool(settings) != (args.action in ("add", "change")):
        raise UsageError("--set FIELD=VALUE belongs to yard site add and change, which need it")
    if bool(args.reason) != (args.action == "give-up"):
        raise UsageError("--reason belongs to yard site give-up, which needs it")
    with connect(args) as client:
        if args.action == "list":
            output.many(args, client.sites(), COLUMNS, name=lambda row: row["name"])
        elif args.action == "jobs":
            output.many(args, client.site_jobs(args.name), JOBS, name=lambda row: str(row["job"]))
        elif args.action == "delete":
            client.delete_site(args.name)
            output.one(args, {"name": args.name}, lambda: [clean.line(f"site {args.name} was deleted")], name=args.name)
        elif args.action == "give-up":
            told = client.give_up_site(args.name, args.reason)
            said = f"{told['given_up']} jobs at site {args.name} were given up, and are queued again"
            output.one(args, told, lambda: [clean.line(said)], name=args.name)
        else:
            one = _one(client, args, settings)
            output.one(args, one, lambda: _lines(one), name=args.name)
    return exits.OK


def _one(client: Any, args: argparse.Namespace, settings: dict[str, Any]) -> Row:
    found: Row
    if args.action == "add":
        found = client.create_site({"name": args.name, **settings})
    elif args.action == "change":
        found = client.change_site(args.name, settings)
    elif args.action == "token":
        if sys.stdin.isatty():
            raise UsageError(f"give the token on standard input: yard site token {args.name} <file")
        found = client.set_site_token(args.name, sys.stdin.read(1_000).strip())
    else:
        found = client.site(args.name)
    return found


def _lines(one: Row) -> Iterator[str]:
    yield clean.line(f"site {one['name']} at {one['url']}, {_how(one)}")
    for device in one["devices"]:
        what = device["model"] or device["kind"]
        yield clean.line(f"  {what}: {device['free']} of {device['count']} free")
    waiting = "-" if one["waiting"] is None else one["waiting"]
    yield f"  waiting    {waiting}"
    yield f"  our jobs   {_ours(one)}, at most {one['most_jobs']}"
    yield f"  price      {one['price']:g} for an hour of a device"
    patience, gain = units.span(one["patience_s"]), units.span(one["gain_s"])
    yield f"  leaves     after {patience}, to end {gain} earlier"
    yield f"  token      {'set' if one['has_token'] else 'none'}"


def _how(one: Row) -> str:
    return str(one["condition"] or one["state"])


def _ours(one: Row) -> str:
    return ", ".join(f"{count} {state}" for state, count in one["our_jobs"].items()) or "none"


def _free(one: Row) -> str:
    known = [device for device in one["devices"] if device["kind"] != "cpu"]
    return ", ".join(f"{device['free']}/{device['count']} {device['model'] or device['kind']}" for device in known)


COLUMNS = (
    Column("SITE", lambda one: one["name"]),
    Column("FREE", _free),
    Column("WAITING", lambda one: "" if one["waiting"] is None else str(one["waiting"]), right=True),
    Column("OUR JOBS", _ours),
    Column("PRICE", lambda one: f"{one['price']:g}", right=True),
    Column("CONDITION", _how),
    Column("URL", lambda one: one["url"], wide=True),
)
JOBS = (
    Column("JOB", lambda one: str(one["job"]), right=True),
    Column("NAME", lambda one: one["name"]),
    Column("THERE", lambda one: "" if one["number"] is None else f"#{one['number']}"),
    Column("STATE", lambda one: "unknown at site" if one["is_unknown"] else one["state"]),
    Column("REASON", lambda one: one["reason"]),
    Column("SINCE", lambda one: one["created_at"]),
)
