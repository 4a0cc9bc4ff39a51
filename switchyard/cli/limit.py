"""``yard limit``: lists, sets and unsets how much one user may have at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard limit set --pool default --running 20 --waiting 200     every user there, each for themselves
  yard limit set --user ann --devices 8                 one user, in all pools; none for unlimited
  yard limit unset --user ann
"""

_WHERE = ("user", "project", "pool")
_AMOUNTS = ("running", "waiting", "devices")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "set", "unset"))
    parser.add_argument("--user", help="whom it limits; without it every user, each for themselves")
    parser.add_argument("--project", help="counts in this project only")
    parser.add_argument("--pool", help="counts in this pool only")
    parser.add_argument(
        "--running", type=units.amount, metavar="N", help="how many stages may run at once; none for any"
    )
    parser.add_argument("--waiting", type=units.amount, metavar="N", help="how many stages may wait, or none")
    parser.add_argument(
        "--devices",
        type=units.amount,
        metavar="N",
        help="how many devices other than CPUs may be held at once, or none",
    )
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _AMOUNTS if getattr(args, name) is not None}
    given = {name: None if value == "none" else value for name, value in given.items()}
    if args.action == "set" and not given:
        raise UsageError("say how much: yard limit set --running N, --waiting N or --devices N")
    where = {name: getattr(args, name) for name in _WHERE}
    with connect(args) as client:
        found: list[Row] = list(client.limits.list())
        if args.action == "list":
            shown = (row for row in found if all(not value or row[name] == value for name, value in where.items()))
            output.many(args, shown, COLUMNS, name=lambda row: str(row["number"]))
            return exits.OK
        mine = next((row for row in found if all(row[name] == value for name, value in where.items())), None)
        if args.action == "unset":
            if mine is None:
                raise NotFound("there is no such limit; `yard limit list` lists them")
            client.limits.delete(mine["number"])
            output.one(args, mine, lambda: [f"limit {mine['number']} is unset"], name=str(mine["number"]))
        else:
            told = (
                client.limits.create({**where, **given})
                if mine is None
                else client.limits.change(mine["number"], given)
            )
            told = {**(mine or {}), **told}
            output.one(args, told, lambda: _lines(told), name=str(told["number"]))
    return exits.OK


def _lines(row: Row) -> Iterator[str]:
    where = (f"{name} {row[name]}" for name in _WHERE if row[name] is not None)
    yield clean.line(f"limit {row['number']}: " + (", ".join(where) or "every user"))
    for name in _AMOUNTS:
        yield f"  {name:<8} {units.amount_of(row[name])}"


COLUMNS = (
    Column("LIMIT", lambda one: str(one["number"]), right=True),
    Column("USER", lambda one: one["user"] or "every user"),
    Column("PROJECT", lambda one: one["project"]),
    Column("POOL", lambda one: one["pool"]),
    *(
        Column(name.upper(), lambda one, name=name: _used(one, name), right=True)  # type: ignore[misc]
        for name in _AMOUNTS
    ),
    Column("USED BY", lambda one: one["whose"], wide=True),
)


def _used(row: Row, name: str) -> str:
    return f"{row[f'{name}_now']:g} of {units.amount_of(row[name])}"
