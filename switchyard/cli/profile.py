"""``yard profile``: lists and shows how pools decide, and makes, previews and activates versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard profile && yard profile show hybrid -o yaml
  yard profile create night --copy-of hybrid && yard profile revise night night.yaml --note "longer horizon"
  yard profile preview night 2 --pool default --days 7; yard profile activate night 2
"""
# Which options belong to which actions; the others refuse them.
OPTIONS = {
    "create": {"copy_of", "note", "file"},
    "change": {"description"},
    "revise": {"note", "file"},
    "preview": {"pool", "days", "against"},
    "activate": {"unseen"},
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "show", "create", "change", "revise", "preview", "activate", "delete"),
    )
    parser.add_argument("name", nargs="?", default="", help="the profile")
    parser.add_argument(
        "given",
        nargs="?",
        default="",
        help="for create and revise: a YAML file of the policies, - reads input; for preview and activate: the version",
    )
    parser.add_argument(
        "--copy-of", default="", metavar="NAME", help="for create: the profile to copy, or NAME@VERSION"
    )
    parser.add_argument("--note", default="", help="for create and revise: what is new in it")
    parser.add_argument("--description", help="for change: what the profile is for")
    parser.add_argument("--pool", default="", help="for preview: whose last days are simulated")
    parser.add_argument("--days", type=float, help="for preview: how many, 7 by default")
    parser.add_argument("--against", default="", metavar="NAME", help="for preview: the other profile")
    parser.add_argument("--unseen", action="store_true", help="for activate: without a finished preview")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    with connect(args) as client:
        if args.action == "list":
            output.many(args, client.profiles.list(), COLUMNS, name=lambda one: one["name"])
        elif args.action == "show":
            found = client.profiles.get(args.name)
            output.one(args, found, lambda: _lines(found), name=args.name)
        elif args.action == "preview":
            made = client.profiles.preview(
                args.name, _version(args), args.pool, days=args.days or 7.0, against=args.against
            )
            said = f"simulation {made['id']} is under way; activate the version when it is done"
            output.one(args, made, lambda: [clean.line(said)], name=made["id"])
        else:
            said = _write(args, client)
            output.one(args, {"name": args.name}, lambda: [clean.line(said)], name=args.name)
    return exits.OK


def _check(args: argparse.Namespace) -> None:
    """Refuse what does not belong together."""
    if args.action != "list" and not args.name:
        raise UsageError(f"say which profile: yard profile {args.action} NAME")
    given = {"copy_of", "note", "description", "pool", "days", "against", "unseen"}
    if stray := [one for one in sorted(given - OPTIONS.get(args.action, set())) if getattr(args, one)]:
        raise UsageError(f"--{stray[0].replace('_', '-')} does not belong to yard profile {args.action}")
    if args.action == "create" and bool(args.copy_of) == bool(args.given):
        raise UsageError("give one of a file and --copy-of: yard profile create NAME FILE")
    if args.action in ("revise", "preview", "activate") and not args.given:
        what = "FILE" if args.action == "revise" else "VERSION"
        raise UsageError(f"yard profile {args.action} NAME {what}")
    if args.action == "change" and args.description is None:
        raise UsageError("say what is to change: --description TEXT")
    if args.action == "preview" and not args.pool:
        raise UsageError("say whose days are simulated: --pool POOL")


def _write(args: argparse.Namespace, client: Client) -> str:
    """Do what was asked for, and return it as a sentence."""
    if args.action == "create":
        spec = _file(args) if args.given else None
        client.profiles.create(args.name, spec=spec, copy_of=args.copy_of, note=args.note)
        return f"profile {args.name} is made; activate its version 1 when you have previewed it"
    if args.action == "change":
        client.profiles.change(args.name, {"description": args.description})
        return f"profile {args.name} is changed"
    if args.action == "revise":
        made = client.profiles.revise(args.name, _file(args), note=args.note)
        return f"version {made['versions'][0]['number']} of {args.name} is made; it decides nowhere yet"
    if args.action == "activate":
        client.profiles.activate(args.name, _version(args), unseen=args.unseen)
        return f"pools of {args.name} decide by version {args.given} from the next cycle on"
    client.profiles.delete(args.name)
    return f"profile {args.name} is deleted"


def _version(args: argparse.Namespace) -> int:
    if not (args.given.isascii() and args.given.isdigit()):
        raise UsageError(f"a version is a number, not {args.given!r}")
    return int(args.given)


def _file(args: argparse.Namespace) -> dict[str, Any]:
    from switchyard import jobfile

    return dict(jobfile.read_text(jobfile.text_of(args.given), args.given))


def _lines(found: Row) -> Iterator[str]:
    profile = found["profile"]
    yield clean.line(f"profile {profile['name']}" + (f": {profile['description']}" if profile["description"] else ""))
    yield clean.line(f"  pools          {', '.join(profile['pools']) or '-'}")
    yield clean.line(f"  evaluated in   {', '.join(profile['beside']) or '-'}")
    for policy, parameters in found["spec"].get("policies", {}).items():
        told = ", ".join(f"{name}={value}" for name, value in parameters.items()) if parameters else ""
        yield clean.line(f"  policy         {policy:<24}{told}".rstrip())
    for one in found["versions"]:
        mark = "active" if one["number"] == profile["active"] else one["preview_phase"].lower()
        yield clean.line(f"  version {one['number']:<7}{mark:<12}{one['made_by']}  {one['note']}".rstrip())


COLUMNS = (
    Column("PROFILE", lambda one: one["name"]),
    Column("ACTIVE", lambda one: "built in" if one["builtin"] else str(one["active"] or "-")),
    Column("POOLS", lambda one: ", ".join(one["pools"]) or "-"),
    Column("EVALUATED IN", lambda one: ", ".join(one["beside"]) or "-"),
    Column("DESCRIPTION", lambda one: one["description"], wide=True),
)
