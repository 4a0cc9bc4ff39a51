"""``yard token``: lists, makes and revokes one's own access tokens. A secret is shown once."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse

SHORTEST_ID = 6
EXAMPLES = """
  yard token list
  yard token create nightly --scope read --days 30 > token.txt
  yard token revoke nightly                  by its name or its id; the first digits of that will do
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "create", "revoke"))
    parser.add_argument("name", nargs="?", default="", help="what you know it by; for revoke also its id")
    parser.add_argument(
        "--scope",
        action="append",
        choices=("read", "submit", "admin"),
        help="for create; may be repeated (read, submit)",
    )
    parser.add_argument("--days", type=int, help="for create: how long it is valid (90)")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") == bool(args.name):
        said = "list takes no name" if args.name else f"say which one: yard token {args.action} NAME"
        raise UsageError(said)
    if args.action != "create" and (args.scope or args.days is not None):
        raise UsageError("--scope and --days are for create")
    with connect(args) as client:
        if args.action == "list":
            output.many(args, client.tokens.list(), COLUMNS, name=lambda one: one["name"])
        elif args.action == "create":
            made = client.tokens.create(args.name, scopes=args.scope or (), days=args.days)
            show_made(args, made)
        else:
            gone = named(client.tokens.list(), args.name)
            client.tokens.revoke(gone["id"])
            output.one(args, gone, lambda: [clean.line(f"token {gone['name']} is revoked")], name=gone["name"])
    return exits.OK


def show_made(args: argparse.Namespace, made: output.Row) -> None:
    """Print the secret of a new token, and on standard error until when it is valid."""
    until = units.clock(made["expires_at"])
    print(f"token {clean.line(made['name'])} is valid until {until}; shown once:", file=sys.stderr)
    output.one(args, made, lambda: [clean.line(made["secret"])], name=made["name"])


def named(tokens: Iterable[output.Row], name: str) -> output.Row:
    """Return the one token of this name, or whose id begins so."""
    found = [
        one for one in tokens if name == one["name"] or (len(name) >= SHORTEST_ID and str(one["id"]).startswith(name))
    ]
    if not found:
        raise NotFound(f"there is no token {name}; the list with -o wide shows names and ids")
    if len(found) > 1:
        raise UsageError(f"{len(found)} tokens are called {name}; give its id, which -o wide shows")
    return found[0]


COLUMNS = (
    Column("NAME", lambda one: one["name"]),
    Column("SCOPES", lambda one: ",".join(one["scopes"])),
    Column("EXPIRES", lambda one: units.clock(one["expires_at"])),
    Column("LAST USED", lambda one: units.clock(one.get("last_used_at"))),
    Column("THIS ONE", lambda one: "yes" if one.get("is_current") else ""),
    Column("CREATED", lambda one: units.clock(one.get("created_at")), wide=True),
    Column("ID", lambda one: one["id"], wide=True),
)
