"""``yard class``: lists priority classes, adds and changes them, and says which projects may use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard class list                      every class, whose it is and whether you may use it
  yard class change high --project vision --project text      theirs only; --everybody opens it again
  yard class add night --value 100 --preemptible yes
"""

_WORDS = {"yes": True, "no": False}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "show", "add", "change", "delete"))
    parser.add_argument("name", nargs="?", default="", help="the class")
    parser.add_argument("--value", type=int, metavar="N", help="its number, from 0 to 10000; bigger is more urgent")
    parser.add_argument("--preemptible", choices=_WORDS, help="whether its jobs may be stopped for more urgent ones")
    parser.add_argument("--leads-only", choices=_WORDS, help="whether only leads of a project may use it there")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--project", action="append", metavar="PROJECT", help="only jobs of this project may use it; may be repeated"
    )
    whose.add_argument("--everybody", action="store_true", help="jobs of all projects may use it")
    whose.add_argument("--nobody", action="store_true", help="no project may use it")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if settings and args.action not in ("add", "change"):
        raise UsageError("--value, --preemptible, --leads-only and whose it is belong to yard class add and change")
    if args.action in ("add", "change", "delete"):
        return _edit(args, settings)
    with connect(args) as client:
        found = [row for row in client.priority_classes() if args.name in ("", row["name"])]
    if args.name and not found:
        raise NotFound(f"there is no class {args.name}; `yard class list` lists them")
    if args.action == "show" and args.name:
        output.one(args, found[0], lambda: _lines(found[0]), name=args.name)
    else:
        output.many(args, iter(found), COLUMNS, name=lambda row: row["name"])
    return exits.OK


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that the options set."""
    words = {"preemptible": args.preemptible, "restricted": args.leads_only}
    found: dict[str, Any] = {name: _WORDS[word] for name, word in words.items() if word is not None}
    if args.value is not None:
        found["value"] = args.value
    if args.project or args.everybody or args.nobody:
        found["projects"] = None if args.everybody else args.project or []
    return found


def _edit(args: argparse.Namespace, settings: dict[str, Any]) -> int:
    if not args.name:
        raise UsageError(f"say which class: yard class {args.action} NAME")
    if args.action == "change" and not settings:
        raise UsageError("say what is to change: --value, --preemptible, --leads-only, --project or --everybody")
    if args.action == "add" and "value" not in settings:
        raise UsageError("say how urgent it is: yard class add NAME --value N")
    with connect(args) as client:
        if args.action == "delete":
            client.delete_priority_class(args.name)
            output.one(args, {"name": args.name}, lambda: [f"class {args.name} was deleted"], name=args.name)
            return exits.OK
        if args.action == "add":
            found = client.create_priority_class({"name": args.name, **settings})
        else:
            found = client.change_priority_class(args.name, settings)
        output.one(args, found, lambda: _lines(found), name=args.name)
    return exits.OK


def _lines(row: Row) -> Iterator[str]:
    yield clean.line(f"class {row['name']}: {row['value']}")
    yield f"  preemptible    {'yes' if row['preemptible'] else 'no'}"
    yield clean.line(f"  for            {_whose(row)}")
    yield f"  you may use it {'yes' if row['usable'] else 'no'}"


def _whose(row: Row) -> str:
    """Return whom a class is for, in words."""
    leads = "leads of " if row["restricted"] else ""
    if row["projects"] is None:
        return f"{leads}every project"
    return leads + (", ".join(row["projects"]) or "no project that you see")


COLUMNS = (
    Column("CLASS", lambda one: one["name"]),
    Column("VALUE", lambda one: str(one["value"]), right=True),
    Column("PREEMPTIBLE", lambda one: "yes" if one["preemptible"] else "no"),
    Column("FOR", _whose),
    Column("FOR YOU", lambda one: "yes" if one["usable"] else "no"),
)
