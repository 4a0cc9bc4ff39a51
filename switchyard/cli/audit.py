"""``yard audit``: lists who changed what, and how."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from switchyard.cli import exits, output, spans, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard audit --actor ada --since 7d    what she changed in a week
  yard audit --object n1 -o wide       what was done to a node, with before and after
  yard audit --action node. -o jsonl   everything done to nodes, for programs
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--actor", default="", help="of this user")
    parser.add_argument("--object", default="", help="to what has this id or name, such as n1 or '#12'")
    parser.add_argument("--action", default="", help="such as node.drain; node. for all that begin so")
    parser.add_argument("--via", default="", help="by this way: api, cli, page, admin or system")
    parser.add_argument("--since", metavar="SPAN", type=spans.seconds, help="within this time, such as 7d")
    parser.add_argument("-n", "--limit", type=int, default=100, help="at most so many (100 if not told)")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    since = datetime.now(UTC) - timedelta(seconds=args.since) if args.since is not None else None
    wanted = {name: getattr(args, name) for name in ("actor", "object", "action", "via")}
    with connect(args) as client:
        found = client.audit(**wanted, since=since, most=args.limit)
        output.many(args, found, COLUMNS, name=lambda entry: entry.get("id"))
    return exits.OK


def _change(entry: Row) -> str:
    """Format each changed value as ``name: before -> after``."""
    before, after = entry.get("before") or {}, entry.get("after") or {}
    names = dict.fromkeys([*before, *after])
    return "; ".join(f"{name}: {_value(before, name)} -> {_value(after, name)}" for name in names)


def _value(side: Any, name: str) -> str:
    value = side.get(name)
    return value if isinstance(value, str) and value else "-" if value in (None, "") else json.dumps(value)


COLUMNS = (
    Column("ID", lambda e: e.get("id"), right=True, wide=True),
    Column("AT", lambda e: units.clock(e.get("at"))),
    Column("WHO", lambda e: e.get("actor")),
    Column("VIA", lambda e: e.get("via")),
    Column("ACTION", lambda e: e.get("action")),
    Column("OBJECT", lambda e: e.get("name") or e.get("object_id")),
    Column("REASON", lambda e: e.get("reason")),
    Column("CREDENTIAL", lambda e: e.get("credential"), wide=True),
    Column("CHANGE", _change, wide=True),
)
