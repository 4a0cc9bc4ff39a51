"""``yard pool``: lists pools, shows, adds and changes them, says who may use them, and moves nodes between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard pool list                  every pool, its profile and whether you may submit to it
  yard pool change default --set max_limit_s=86400 --set profile=fair
  yard pool allow train --project vision --group night     for these only; without any for everybody
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "show", "add", "change", "allow", "delete")
    )
    parser.add_argument("name", nargs="?", default="", help="the pool")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="for add and change: a field of the REST interface, such as default_limit_s=3600; may be repeated",
    )
    parser.add_argument("--project", action="append", default=[], metavar="PROJECT", help="for allow: whose jobs may")
    parser.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="for allow: whose members' jobs may"
    )
    parser.add_argument("--nobody", action="store_true", help="for allow: no job may use it")
    parser.add_argument("--add-node", action="append", default=[], metavar="NODE", help="put a node into it too")
    parser.add_argument("--remove-node", action="append", default=[], metavar="NODE", help="take a node out of it")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.action not in ("add", "change") and (args.set or args.add_node or args.remove_node):
        raise UsageError("--set, --add-node and --remove-node belong to yard pool add and change")
    if args.action != "allow" and (args.project or args.group or args.nobody):
        raise UsageError("--project, --group and --nobody belong to yard pool allow")
    if args.action == "allow":
        return _allow(args)
    if args.action in ("add", "change", "delete"):
        return _edit(args)
    with connect(args) as client:
        found = [row for row in client.pools() if args.name in ("", row["name"])]
    if args.name and not found:
        raise NotFound(f"there is no pool {args.name}; `yard pool list` lists them")
    if args.action == "show" and args.name:
        output.one(args, found[0], lambda: _lines(found[0]), name=args.name)
    else:
        output.many(args, iter(found), COLUMNS, name=lambda row: row["name"])
    return exits.OK


def _edit(args: argparse.Namespace) -> int:
    settings = dict(setting(text) for text in args.set)
    if not args.name:
        raise UsageError(f"say which pool: yard pool {args.action} NAME")
    if args.action == "change" and not (settings or args.add_node or args.remove_node):
        raise UsageError("say what is to change: --set FIELD=VALUE, --add-node or --remove-node")
    with connect(args) as client:
        if args.action == "add":
            client.create_pool({"name": args.name, **settings})
        elif args.action == "change" and settings:
            client.change_pool(args.name, settings)
        elif args.action == "delete":
            client.delete_pool(args.name)
        for node in args.add_node:
            client.nodes.join(node, args.name)
        for node in args.remove_node:
            client.nodes.join(node, args.name, leave=True)
        done = {"add": "was added", "change": "was changed", "delete": "was deleted"}[args.action]
        output.one(args, {"name": args.name}, lambda: [clean.line(f"pool {args.name} {done}")], name=args.name)
    return exits.OK


def _allow(args: argparse.Namespace) -> int:
    if not args.name:
        raise UsageError("say which pool: yard pool allow NAME")
    if args.nobody and (args.project or args.group):
        raise UsageError("give --nobody, or --project and --group")
    with connect(args) as client:
        told = client.allow_pool(args.name, projects=args.project, groups=args.group, restricted=args.nobody)
    whom = [*(f"project {one}" for one in told["projects"]), *(f"group {one}" for one in told["groups"])]
    said = ", ".join(whom) or ("nobody" if told["restricted"] else "everybody")
    output.one(args, told, lambda: [clean.line(f"pool {args.name} is for {said}")], name=args.name)
    return exits.OK


def setting(text: str) -> tuple[str, Any]:
    """Read ``FIELD=VALUE``: a number, true, false, null or a list as in JSON, and any other value as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set takes FIELD=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _lines(pool: Row) -> Iterator[str]:
    yield clean.line(f"pool {pool['name']}" + (f", stopped by {pool['stopped_by']}" if pool["stopped_by"] else ""))
    yield clean.line(f"  profile        {pool['decides']}")
    yield f"  nodes          {pool['nodes']}"
    yield f"  time limit     {units.span(pool['default_limit_s'])}, at most {units.span(pool['max_limit_s'])}"
    yield f"  you may submit {'yes' if pool['usable'] else 'no'}"


COLUMNS = (
    Column("POOL", lambda one: one["name"]),
    Column("PROFILE", lambda one: one["decides"]),
    Column("NODES", lambda one: str(one["nodes"]), right=True),
    Column("TIME LIMIT", lambda one: units.span(one["default_limit_s"]), right=True),
    Column("MOST", lambda one: units.span(one["max_limit_s"]), right=True),
    Column("FOR YOU", lambda one: "yes" if one["usable"] else "no"),
    Column("STOPPED BY", lambda one: one["stopped_by"]),
)
