"""``yard quota``: lists the quotas of projects, and sets and deletes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

EXAMPLES = """
  yard quota list                                     what each project may hold, and what it holds
  yard quota set vision gpu --model H100 --nominal 16 --borrowing 8
  yard quota delete vision gpu --model H100           so that it is unlimited again
"""

_LIMITS = ("nominal", "borrowing_limit", "lending_limit")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "set", "delete"))
    parser.add_argument("project", nargs="?", default="", help="whose it is; list takes none for all that you see")
    parser.add_argument("kind", nargs="?", default="", help="of which kind of device: gpu, npu, cpu, ...")
    parser.add_argument("--model", default="", help="only devices with this in the name of their model")
    parser.add_argument("--normalised", action="store_true", help="counts devices in A100 equivalents")
    parser.add_argument("--nominal", type=units.amount, metavar="N", help="how many are its own; none for unlimited")
    parser.add_argument(
        "--borrowing",
        dest="borrowing_limit",
        type=units.amount,
        metavar="N",
        help="how many more it may borrow, or none",
    )
    parser.add_argument(
        "--lending", dest="lending_limit", type=units.amount, metavar="N", help="how many of its own it lends, or none"
    )
    parser.add_argument("--cohort", help="the cohort whose quotas lend each other what is not used")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.action != "list" and not args.kind:
        raise UsageError(f"say whose quota, and of which kind: yard quota {args.action} PROJECT KIND")
    with connect(args) as client:
        found = [row for row in client.quotas.list() if _is_meant(row, args)]
        if args.action == "list":
            output.many(args, iter(found), COLUMNS, name=lambda row: str(row["number"]))
        elif args.action == "delete":
            if not found:
                raise NotFound(f"project {args.project} has no such quota")
            client.quotas.delete(found[0]["number"])
            output.one(args, found[0], lambda: [f"{_named(found[0])} is unlimited"], name=str(found[0]["number"]))
        else:
            given = {name: getattr(args, name) for name in (*_LIMITS, "cohort") if getattr(args, name) is not None}
            wanted = {name: None if value == "none" else value for name, value in given.items()}
            told: Row
            if found:
                told = client.quotas.change(found[0]["number"], wanted)
            else:
                sort = {"project": args.project, "kind": args.kind, "model": args.model, "normalised": args.normalised}
                told = client.quotas.create({**sort, **wanted})
            output.one(args, told, lambda: _lines(told), name=_named(told))
    return exits.OK


def _is_meant(row: Row, args: argparse.Namespace) -> bool:
    """Whether the arguments mean this quota; for ``list`` what is left out is any."""
    if args.action == "list":
        wanted = {"project": args.project, "kind": args.kind, "model": args.model}
        return all(not value or row[name] == value for name, value in wanted.items())
    sort = (row["project"], row["kind"], str(row["model"]).lower(), row["normalised"])
    return sort == (args.project, args.kind, args.model.lower(), args.normalised)


def _named(row: Row) -> str:
    return clean.line(f"{row['project']} {row['kind']} {row['model']}".rstrip())


def _lines(row: Row) -> Iterator[str]:
    yield _named(row)
    for name, label in zip(_LIMITS, ("own", "may borrow", "lends"), strict=True):
        yield f"  {label:<11} {units.amount_of(row[name])}"


def _loans(row: Row) -> str:
    return ", ".join(f"{one['project']} {units.amount_of(one['amount'])}" for one in row.get("lent_to") or ())


COLUMNS = (
    Column("PROJECT", lambda one: one["project"]),
    Column("KIND", lambda one: one["kind"]),
    Column("MODEL", lambda one: one["model"]),
    Column("NOMINAL", lambda one: units.amount_of(one["nominal"]), right=True),
    Column("HELD", lambda one: units.amount_of(one["held"]), right=True),
    Column("BORROWED", lambda one: units.amount_of(one["borrowed"]), right=True),
    Column("LENT", lambda one: units.amount_of(one["lent"]), right=True),
    Column("LENT TO", lambda one: _loans(one), wide=True),
    Column("BORROWS", lambda one: units.amount_of(one["borrowing_limit"]), right=True),
    Column("LENDS", lambda one: units.amount_of(one["lending_limit"]), right=True),
    Column("COHORT", lambda one: one["cohort"]),
)
