"""``yard resume``: returns a drained node to service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard resume g07
  yard resume g07 --reason "fan swapped"
  yard resume g07 --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", help="its name or id")
    parser.add_argument("--reason", default="", help="why; it is recorded with the node")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        node = client.nodes.resume(args.node, args.reason)
        output.one(
            args,
            node,
            lambda: [f"node {clean.line(node.get('name', args.node))} {output.paint(str(node.get('state')))}"],
        )
    return exits.OK
