"""``yard pool``: lists pools, and shows one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.output import Column
from switchyard.cli.session import connect
from switchyard.problem import NotFound

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard pool list                  every pool, its profile and whether you may submit to it
  yard pool show default
  yard pool show default --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "show"))
    parser.add_argument("name", nargs="?", default="", help="the pool")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = [row for row in client.pools() if args.name in ("", row["name"])]
    if args.name and not found:
        raise NotFound(f"there is no pool {args.name}; `yard pool list` lists them")
    if args.action == "show" and args.name:
        output.one(args, found[0], lambda: _lines(found[0]), name=args.name)
    else:
        output.many(args, iter(found), COLUMNS, name=lambda row: row["name"])
    return exits.OK


def _lines(pool: dict[str, Any]) -> Iterator[str]:
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
