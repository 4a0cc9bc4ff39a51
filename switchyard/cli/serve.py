"""``yard serve FILE``: makes a service of a service file, or updates the one of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output
from switchyard.cli.connection import connect
from switchyard.cli.readiness import wait_until_ready
from switchyard.cli.service import apply, lines
from switchyard.cli.spans import seconds

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard serve service.yaml
  yard serve service.yaml --set replicas=2 --wait
  yard serve service.yaml --project nlp --wait --timeout 10m
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the service file; - reads standard input")
    parser.add_argument("--project", default="", help="whose service it is")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="any key of the file")
    parser.add_argument("--wait", action="store_true", help="wait until it answers with all that it wants")
    parser.add_argument("--timeout", metavar="TIME", type=seconds, help="how long to wait, such as 10m")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = apply(client, args.file, args.set, args.project)
        if args.wait:
            found = wait_until_ready("service", found["service"]["id"], client.services.get, args.timeout)
        output.one(args, found, lambda: lines(found), name=found["service"]["id"])
    return exits.OK
