"""``yard rotate``: gives a node's agent a new credential through its link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard rotate g07
  yard rotate g07 --reason "its state folder was in a backup" --json
  for node in $(yard nodes -o name); do yard rotate $node; done
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", help="its name or id")
    parser.add_argument("--reason", default="", help="why")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        node = client.nodes.rotate(args.node, args.reason)
        said = "gets a new credential with its next report; the old one serves until then"
        output.one(args, node, lambda: [f"node {clean.line(node.get('name', args.node))} {said}"])
    return exits.OK
