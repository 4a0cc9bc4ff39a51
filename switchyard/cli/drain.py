"""``yard drain``: drains a node: running stages finish, nothing new is placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard drain g07 --reason "fan swap, ticket 311"
  yard drain g07 --reason "kernel update" && yard nodes
  yard drain g07 --reason "slow link" --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", help="its name or id")
    parser.add_argument("--reason", required=True, help="why; others will ask, and it is recorded with the node")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        node = client.nodes.drain(args.node, args.reason)
        output.one(
            args,
            node,
            lambda: [f"node {clean.line(node.get('name', args.node))} {output.paint(str(node.get('state')))}"],
        )
    return exits.OK
