"""``yard lost``: confirms that a LOST node is gone, so that its stages can be requeued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard lost g07 --reason "power supply burnt, seen in the rack"
  yard lost g07 --reason "sold last week" --json
  for node in g07 g08; do yard lost $node --reason "room flooded"; done
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", help="its name or id")
    parser.add_argument("--reason", required=True, help="how you know that nothing of it runs any more")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        node = client.nodes.lost(args.node, args.reason)
        output.one(
            args,
            node,
            lambda: [f"node {clean.line(node.get('name', args.node))} {output.paint(str(node.get('state')))}"],
        )
    return exits.OK
