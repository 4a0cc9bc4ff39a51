"""``yard cordon``: takes a device out of service; stages that hold it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard cordon g07 gpu3 --reason "double-bit errors, ticket 340"
  yard cordon g07 GPU-4f2c --reason "runs hot"
  yard cordon g07 gpu3 --reason "double-bit errors, ticket 340" --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", help="its name or id")
    parser.add_argument("device", help="its uuid, or its kind and index, such as gpu3")
    parser.add_argument("--reason", required=True, help="why; others will ask, and it is recorded with the device")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        device = client.nodes.cordon(args.node, args.device, args.reason)
        output.one(
            args,
            device,
            lambda: [
                f"device {clean.line(args.node)} {clean.line(args.device)} {output.paint(str(device.get('health')))}"
            ],
        )
    return exits.OK
