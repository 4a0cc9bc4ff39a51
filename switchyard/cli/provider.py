"""``yard provider``: lists, shows, adds and changes providers of nodes, and lists their pilots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.cli.pool import setting
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard provider add hpc provider.yaml --set max_nodes=8      see docs/how-to/slurm-cluster.md
  yard provider && yard provider pilots hpc
  yard provider change hpc --set enabled=false               give all its nodes back
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "show", "add", "change", "delete", "pilots")
    )
    parser.add_argument("name", nargs="?", default="", help="the provider")
    parser.add_argument(
        "file", nargs="?", default="", help="for add and change: its settings as YAML; - reads standard input"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="for add and change: a field of the REST interface, such as hours=4; may be repeated",
    )
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.action != "list" and not args.name:
        raise UsageError(f"say which provider: yard provider {args.action} NAME")
    if args.action not in ("add", "change") and (args.set or args.file):
        raise UsageError("a file and --set belong to yard provider add and change")
    settings = _settings(args)
    if args.action in ("add", "change") and not settings:
        raise UsageError("say what it is like: a file, or --set FIELD=VALUE")
    with connect(args) as client:
        if args.action == "list":
            found = (row for row in client.providers() if args.name in ("", row["name"]))
            output.many(args, found, COLUMNS, name=lambda row: row["name"])
        elif args.action == "pilots":
            output.many(args, client.pilots(args.name), PILOTS, name=lambda row: row["label"])
        elif args.action == "delete":
            client.delete_provider(args.name)
            said = clean.line(f"provider {args.name} was deleted")
            output.one(args, {"name": args.name}, lambda: [said], name=args.name)
        else:
            one: Row
            if args.action == "add":
                one = client.create_provider({"name": args.name, **settings})
            elif args.action == "change":
                one = client.change_provider(args.name, settings)
            else:
                one = client.provider(args.name)
            output.one(args, one, lambda: _lines(one), name=args.name)
    return exits.OK


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the file and the command line; the latter count."""
    found: dict[str, Any] = {}
    if args.file:
        from switchyard import jobfile

        found = jobfile.read_text(jobfile.text_of(args.file), args.file)
    return {**found, **dict(setting(text) for text in args.set)}


def _lines(one: Row) -> Iterator[str]:
    yield clean.line(f"provider {one['name']} ({one['kind']}) of pool {one['pool']}, {_how(one)}")
    yield f"  nodes      {one['min_nodes']} to {one['max_nodes']}, each for {units.span(one['hours'] * 3600)}"
    budget = one.get("budget_node_hours")
    most = "" if budget is None else f" of {budget:g}"
    yield f"  node-hours {one['used_node_hours']:g}{most} in 30 days"
    yield f"  idle       given back after {units.span(one['idle_s'])}"
    for shape in one["shapes"]:
        yield clean.line(
            f"  shape      {shape['name']}: {shape['cpus']} cores, {shape['memory_gib']:g} GiB{_more(shape)}"
        )
    yield clean.line(f"  pilots     {_pilots(one)}")


def _how(one: Row) -> str:
    return str(one["condition"] or ("well" if one["enabled"] else "disabled"))


def _more(shape: Row) -> str:
    return "".join(f", {one.get('count', 1)} x {one.get('model') or one['kind']}" for one in shape.get("devices", ()))


def _pilots(one: Row) -> str:
    return ", ".join(f"{count} {state}" for state, count in one["pilots"].items()) or "none"


COLUMNS = (
    Column("PROVIDER", lambda one: one["name"]),
    Column("KIND", lambda one: one["kind"]),
    Column("POOL", lambda one: one["pool"]),
    Column("MOST", lambda one: str(one["max_nodes"]), right=True),
    Column("PILOTS", _pilots),
    Column("NODE-HOURS", lambda one: f"{one['used_node_hours']:g}", right=True),
    Column("CONDITION", _how),
)
PILOTS = (
    Column("HANDLE", lambda one: one["handle"]),
    Column("SHAPE", lambda one: one["shape"]),
    Column("STATE", lambda one: one["state"]),
    Column("WHY", lambda one: one["why"]),
    Column("NODE", lambda one: one["node"]),
    Column("SINCE", lambda one: one["created_at"]),
    Column("ENDS", lambda one: one["gone_at"] or one["ends_at"]),
    Column("LABEL", lambda one: one["label"], wide=True),
)
