"""``yard template``: lists, shows, makes and deletes templates, and submits jobs from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard template && yard template show torchrun
  yard template submit torchrun --set nodes=2 --set script="train.py --lr 1e-4" --dry-run
  yard template create ours ours.yaml --project vision
"""
VERBS = ("list", "show", "submit", "create", "delete")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("template", nargs="?", default="", help="its name")
    parser.add_argument(
        "file",
        nargs="?",
        default="",
        help="for create: YAML with title, description, parameters and job; - reads input",
    )
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="for submit: a parameter's value")
    parser.add_argument(
        "--project", default="", help="whose template, and for submit whose job; without it everybody's"
    )
    parser.add_argument("--dry-run", action="store_true", help="for submit: tell what the job would take")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb != "list" and not args.template:
        raise UsageError(f"say which template: yard template {args.verb} NAME")
    if (args.verb == "create") != bool(args.file):
        raise UsageError("yard template create NAME FILE makes one; the other verbs take no file")
    if args.verb != "submit" and (args.set or args.dry_run):
        raise UsageError("--set and --dry-run belong to yard template submit")
    with connect(args) as client:
        project = args.project or None
        if args.verb == "list":
            output.many(args, client.templates.list(project=project), COLUMNS, name=lambda one: one["name"])
        elif args.verb == "show":
            found = client.templates.get(args.template, project=project)
            output.one(args, found, lambda: _lines(found), name=found["name"])
        elif args.verb == "create":
            made = client.templates.put(args.template, _file(args), project=project)
            output.one(args, made, lambda: [clean.line(f"template {made['name']} is set")], name=made["name"])
        elif args.verb == "delete":
            client.templates.delete(args.template, project=project)
            said = f"template {args.template} is deleted; its jobs stay"
            output.one(args, {"name": args.template}, lambda: [clean.line(said)], name=args.template)
        else:
            _submit(args, client)
    return exits.OK


def _submit(args: argparse.Namespace, client: Client) -> None:
    from switchyard.cli.submit import preview

    job = client.templates.fill(args.template, values(args.set), project=args.project or client.project or "")
    if args.dry_run:
        found = client.preview(job)
        output.one(args, found, lambda: preview(found), name="")
        return
    made = client.jobs.submit(job)
    kind = "array" if made.is_array else "job"
    output.one(args, made, lambda: [clean.line(f"submitted {kind} {made.number} ({made.name})")], name=made.number)


def values(given: Iterable[str]) -> dict[str, str]:
    """Return the values of ``--set NAME=VALUE``, by name."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--set {text}: write it as NAME=VALUE")
        found[name] = value
    return found


def _file(args: argparse.Namespace) -> dict[str, Any]:
    from switchyard import jobfile

    return dict(jobfile.read_text(jobfile.text_of(args.file), args.file))


def _lines(found: Row) -> Iterable[str]:
    """Yield a template with its parameters."""
    yield clean.line(f"template {found['name']}: {found['title']}")
    if found["description"]:
        yield clean.line(f"  {found['description']}")
    for one in found["parameters"]:
        bounds = f" {one['min']} to {one['max']}" if "min" in one else ""
        choices = f": {', '.join(one['choices'])}" if one.get("choices") else ""
        default = "required" if one.get("default") is None else f"default {one['default']}"
        yield clean.line(f"  {one['name']:<12}{one.get('type', 'text')}{bounds}{choices}; {default}")


COLUMNS = (
    Column("TEMPLATE", lambda one: one["name"]),
    Column("TITLE", lambda one: one["title"]),
    Column("PROJECT", lambda one: one["project"] or "everybody"),
    Column("PARAMETERS", lambda one: " ".join(each["name"] for each in one["parameters"])),
    Column("BY", lambda one: one["made_by"] or "shipped", wide=True),
)
