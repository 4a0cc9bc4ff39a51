"""``yard fuse``: shows the mass-loss fuse, or releases it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.cli.output import Row

EXAMPLES = """
  yard fuse
  yard fuse --json
  yard fuse release --reason "the racks are switched off; nothing runs there"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "release"), default="show", help="show if not told")
    parser.add_argument("--reason", default="", help="why the silent nodes may be given up; a release needs one")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.action == "release" and not args.reason.strip():
        raise UsageError("a release needs --reason; whose jobs start elsewhere will ask")
    with connect(args) as client:
        told = client.nodes.release_fuse(args.reason) if args.action == "release" else client.nodes.fuse()
        output.one(args, told, lambda: _lines(args.action, told), name="blown" if told["blown_at"] else "whole")
    return exits.OK


def _lines(deed: str, told: Row) -> list[str]:
    silent = told["silent"]
    names = ", ".join(silent[:10]) + (f" and {len(silent) - 10} more" if len(silent) > 10 else "")
    about = f"{len(silent)} of {told['nodes']} nodes are silent and ran something" + (f": {names}" if silent else "")
    if deed == "release":
        state = "the fuse is released; silent nodes are given up as their stages ask for"
    elif told["blown_at"]:
        state = f"the fuse is blown since {told['blown_at']}; nothing of silent nodes is started elsewhere"
    else:
        state = "the fuse is whole"
    return [clean.line(state), clean.line(about)]
