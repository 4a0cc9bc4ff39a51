"""``yard search``: finds jobs, nodes, devices, pools, projects and people by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard search qwen            whatever has "qwen" in its name, and you may see
  yard search g07:3           the fourth device of a node
  yard search llama --limit 50 --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", help="a part of a name, or the number of a job")
    parser.add_argument(
        "--limit", type=int, default=6, metavar="N", help="how many of each kind, 50 at most (default 6)"
    )
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        output.many(args, client.search(" ".join(args.words), limit=args.limit), COLUMNS, name=lambda one: one["path"])
    return exits.OK


COLUMNS = (
    Column("KIND", lambda one: one["kind"]),
    Column("NAME", lambda one: one["name"]),
    Column("STATE", lambda one: one["state"]),
    Column("DETAIL", lambda one: one["detail"]),
    Column("PAGE", lambda one: one["path"], wide=True),
)
