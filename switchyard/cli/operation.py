"""``yard operation``: lists, shows, awaits and cancels actions on many jobs that go on in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, several
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard operation                  those of the last seven days
  yard operation wait 7           until it has ended
  yard operation cancel 7         what was done stays done
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "show", "wait", "cancel"))
    parser.add_argument("number", nargs="?", type=int, help="the operation")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") != (args.number is None):
        raise UsageError("yard operation list, or show, wait or cancel with a number")
    with connect(args) as client:
        if args.number is None:
            output.many(args, client.operations.list(), COLUMNS, name=lambda one: str(one["id"]))
            return exits.OK
        act: Mapping[str, Callable[[int], Row]] = {
            "show": client.operations.get,
            "wait": client.operations.wait,
            "cancel": client.operations.cancel,
        }
        found = act[args.action](args.number)
        told = [f"  job {each['number']}: {each['detail']} ({each['code']})" for each in found["refusals"]]
        output.one(args, found, lambda: map(clean.line, [several.outcome(found), *told]), name=found["id"])
    return exits.OK if args.action != "wait" or found["phase"] == "DONE" else exits.FAILURE


COLUMNS = (
    Column("OPERATION", lambda one: str(one["id"]), right=True),
    Column("ACTION", lambda one: one["action"]),
    Column("JOBS", lambda one: " ".join(f"{name}={value}" for name, value in one["filter"].items())),
    Column("PHASE", lambda one: one["phase"]),
    Column("MATCHED", lambda one: str(one["matched"]), right=True),
    Column("DONE", lambda one: str(one["done"]), right=True),
    Column("REFUSED", lambda one: str(one["refused"]), right=True),
    Column("USER", lambda one: one["user"], wide=True),
)
