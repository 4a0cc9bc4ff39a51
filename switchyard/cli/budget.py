"""``yard budget``: lists the budgets of device-hours of projects, and sets and deletes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

EXAMPLES = """
  yard budget list                                    what each project has used, and when it ends at this rate
  yard budget set vision --kind gpu --hours 500 --at-end hold
  yard budget set vision --from 2027-01-01 --to 2027-06-30 --hours 2000 --normalised
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "set", "delete"))
    parser.add_argument("project", nargs="?", default="", help="whose it is; list takes none for all that you see")
    parser.add_argument("--kind", default="", help="gpu, npu, cpu, ...; without it all devices other than CPUs")
    parser.add_argument("--normalised", action="store_true", help="counts hours of an A100")
    parser.add_argument("--period", choices=("month", "quarter"), help="anew in each of them; month if not told")
    parser.add_argument("--from", dest="first_day", metavar="DAY", help="once, from this day in UTC: 2027-01-31")
    parser.add_argument("--to", dest="last_day", metavar="DAY", help="to this day, included")
    parser.add_argument("--hours", type=float, metavar="N", help="how many device-hours; of cpu, hours of one core")
    parser.add_argument(
        "--at-end",
        choices=("notify", "hold", "stop"),
        help="when used up: leads are told (notify), nothing more starts (hold), or what runs stops too (stop)",
    )
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in ("hours", "at_end") if getattr(args, name) is not None}
    if args.action != "list" and not args.project:
        raise UsageError(f"say whose budget: yard budget {args.action} PROJECT")
    if bool(args.first_day) != bool(args.last_day) or (args.period and args.first_day):
        raise UsageError("give both --from and --to, or --period")
    if args.action == "set" and not given:
        raise UsageError("say what to set: --hours N, --at-end hold")
    with connect(args) as client:
        found = [row for row in client.budgets.list() if _is_meant(row, args)]
        if args.action == "list":
            output.many(args, iter(found), COLUMNS, name=lambda row: str(row["number"]))
        elif args.action == "delete":
            if not found:
                raise NotFound(f"project {args.project} has no such budget; `yard budget list` lists them")
            client.budgets.delete(found[0]["number"])
            output.one(args, found[0], lambda: [f"{_named(found[0])} is deleted"], name=str(found[0]["number"]))
        else:
            told: Row
            if found:
                told = {**found[0], **client.budgets.change(found[0]["number"], given)}
            else:
                told = client.budgets.create({**_sort(args), **given})
            output.one(args, told, lambda: _lines(told), name=str(told["number"]))
    return exits.OK


def _sort(args: argparse.Namespace) -> dict[str, Any]:
    """What tells budgets of a project apart."""
    sort = {"project": args.project, "kind": args.kind, "normalised": args.normalised}
    if args.first_day:
        return {**sort, "period": "dates", "first_day": args.first_day, "last_day": args.last_day}
    return {**sort, "period": args.period or "month"}


def _is_meant(row: Row, args: argparse.Namespace) -> bool:
    """Whether the arguments mean this budget; for ``list`` what is left out is any."""
    if args.action == "list":
        wanted = {"project": args.project, "kind": args.kind, "period": args.period}
        return all(not value or row[name] == value for name, value in wanted.items())
    return all(row[name] == value for name, value in _sort(args).items())


def _named(row: Row) -> str:
    return clean.line(f"budget {row['number']} of project {row['project']}")


def _what(row: Mapping[str, Any]) -> str:
    kind = row["kind"] or "devices"
    return f"{kind} (normalised)" if row["normalised"] else kind


def _period(row: Mapping[str, Any]) -> str:
    return row["period"] if row["period"] != "dates" else f"{row['first_day']} to {row['last_day']}"


def _lines(row: Row) -> Iterator[str]:
    yield _named(row)
    yield clean.line(f"  of       {_what(row)}, {_period(row)}")
    yield f"  hours    {row['hours']:g}"
    yield clean.line(f"  at end   {row['at_end']}")


def _ends(row: Mapping[str, Any]) -> str:
    if row["is_used_up"]:
        return "used up"
    return units.clock(row["ends_at"]) or "lasts"


COLUMNS = (
    Column("BUDGET", lambda one: str(one["number"]), right=True),
    Column("PROJECT", lambda one: one["project"]),
    Column("OF", _what),
    Column("PERIOD", _period),
    Column("HOURS", lambda one: f"{one['hours']:g}", right=True),
    Column("USED", lambda one: f"{one['used_hours']:.4g}", right=True),
    Column("FORECAST", lambda one: f"{one['forecast_hours']:.4g}", right=True),
    Column("ENDS", _ends),
    Column("THEN", lambda one: one["at_end"]),
    Column("UNTIL", lambda one: str(one["last_day"]), wide=True),
)
