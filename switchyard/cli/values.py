"""``yard values``: lists the numbers that a job reported, such as its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

EXAMPLES = """
  yard values 42                     each number that job 42 reported: the newest, the least and the most
  yard values 42 --name loss --each  the loss at each step that is kept
  yard values 42 --stage train -o json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("--stage", default="", help="only of this stage")
    parser.add_argument("--name", default="", help="only the number of this name, such as loss")
    parser.add_argument("--each", action="store_true", help="a row for each step that is kept, instead of each number")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.jobs.values(args.job, stage=args.stage, name=args.name)
    series = [{"stage": told["stage"], "attempt": told["attempt"], **one} for told in found for one in told["series"]]
    if args.each:
        output.many(args, _steps(series), STEPS, name=lambda step: step["step"])
    else:
        output.many(args, series, COLUMNS, name=lambda one: one["name"])
    return exits.OK


def _steps(series: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each step of each number."""
    for one in series:
        for step, value in zip(one["steps"], one["values"], strict=True):
            yield {"stage": one["stage"], "attempt": one["attempt"], "name": one["name"], "step": step, "value": value}


def _known(one: Row) -> list[float]:
    """Return the values that are numbers: null stands for what is none, such as infinity."""
    return [value for value in one["values"] if value is not None]


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


COLUMNS = (
    Column("STAGE", lambda s: s["stage"]),
    Column("ATTEMPT", lambda s: s["attempt"], right=True),
    Column("NAME", lambda s: s["name"]),
    Column("STEP", lambda s: _shown(s["steps"][-1]) if s["steps"] else "", right=True),
    Column("NEWEST", lambda s: _shown(s["values"][-1]) if s["values"] else "", right=True),
    Column("LEAST", lambda s: _shown(min(_known(s), default=None)), right=True),
    Column("MOST", lambda s: _shown(max(_known(s), default=None)), right=True),
    Column("REPORTS", lambda s: s["reports"], right=True, wide=True),
)
STEPS = (
    Column("STAGE", lambda s: s["stage"]),
    Column("ATTEMPT", lambda s: s["attempt"], right=True),
    Column("NAME", lambda s: s["name"]),
    Column("STEP", lambda s: f"{s['step']:.15g}", right=True),
    Column("VALUE", lambda s: _shown(s["value"]), right=True),
)
