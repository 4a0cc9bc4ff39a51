"""``yard events``: lists what happened to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.output import Column, Row
from switchyard.cli.session import connect

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
        output.many(
            args, client.jobs.events(args.job), COLUMNS, name=lambda event: event.get("seq", event.get("id", ""))
        )
    return exits.OK


def _said(event: Row) -> str:
    for key in ("text", "detail", "reason"):
        if event.get(key):
            return units.reason(event[key])
    return ""


COLUMNS = (
    Column("AT", lambda e: units.clock(e.get("at"))),
    Column("STAGE", lambda e: e.get("stage")),
    Column("EVENT", lambda e: e.get("type") or e.get("event") or e.get("kind")),
    Column("STATE", lambda e: e.get("to") or e.get("state")),
    Column("BY", lambda e: e.get("actor"), wide=True),
    Column("DETAIL", _said),
)
