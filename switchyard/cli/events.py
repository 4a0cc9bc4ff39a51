"""``yard events``: lists the events of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard events 42                 what happened, oldest first
  yard events 42 -o jsonl        for programs
  yard events 42 -o wide         with actors and states
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        output.many(args, client.jobs.events(args.job), COLUMNS, name=lambda event: event.get("seq"))
    return exits.OK


COLUMNS = (
    Column("AT", lambda e: units.clock(e.get("at"))),
    Column("STAGE", lambda e: e.get("stage")),
    Column("ATTEMPT", lambda e: e.get("attempt"), right=True),
    Column("EVENT", lambda e: e.get("kind")),
    Column("BY", lambda e: e.get("actor"), wide=True),
    Column("TEXT", lambda e: e.get("text")),
)
