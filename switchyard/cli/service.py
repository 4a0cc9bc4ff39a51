"""``yard service``: lists, shows, scales, rolls back and deletes services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.named import number_of
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard service && yard service show chat
  yard service scale chat --min 2 --max 8
  yard service canary chat --share 10 && yard service rollback chat
"""
VERBS = ("list", "apply", "show", "scale", "canary", "rollback", "delete")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("service", nargs="?", default="", help="its name or number; for apply: the service file")
    parser.add_argument("--project", default="", help="whose services")
    parser.add_argument("--min", type=int, metavar="N", help="for scale: the least replicas")
    parser.add_argument("--max", type=int, metavar="N", help="for scale: the most replicas")
    parser.add_argument("--share", type=int, metavar="PERCENT", help="for canary: what the newest revision gets")
    parser.add_argument("--revision", type=int, metavar="N", help="for rollback: another than the one before")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="for apply: any key of the file")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if fault := _fault(args):
        raise UsageError(fault)
    with connect(args) as client:
        if args.verb == "list":
            found = client.services.list(project=args.project or None, name=args.service or None)
            output.many(args, found, COLUMNS, name=lambda one: one["id"])
        elif args.verb == "apply":
            _shown(args, apply(client, args.service, args.set, args.project))
        elif args.verb == "delete":
            number = _number(args, client)
            client.services.delete(number)
            output.one(args, {"id": number}, lambda: [f"service {number} is deleted; its replicas end"], name=number)
        else:
            _shown(args, _done(args, client))
    return exits.OK


def _done(args: argparse.Namespace, client: Client) -> Row:
    number = _number(args, client)
    if args.verb == "show":
        return client.services.get(number)
    if args.verb == "rollback":
        return client.services.roll_back(number, args.revision)
    patch = {"canary": args.share} if args.verb == "canary" else {"min": args.min, "max": args.max}
    return client.services.change(number, {key: value for key, value in patch.items() if value is not None})


def _fault(args: argparse.Namespace) -> str:
    """Return what is missing, or an empty text."""
    if args.verb != "list" and not args.service:
        return f"say which service: yard service {args.verb} {'FILE' if args.verb == 'apply' else 'NAME'}"
    if args.verb == "scale" and args.min is None and args.max is None:
        return "say how many replicas: yard service scale NAME --min 1 --max 4"
    if args.verb == "canary" and args.share is None:
        return "say which share: yard service canary NAME --share 10"
    return ""


def apply(client: Client, path: str, changes: Sequence[str], project: str) -> Any:
    """Make a service of a file, or update the one of its name; return it."""
    from switchyard import jobfile

    file = jobfile.read_text(jobfile.text_of(path), path)
    jobfile.put(file, list(changes))
    template = file.get("template")
    if isinstance(template, dict) and template.get("workdir") and not isinstance(template["workdir"], dict):
        folder = Path.cwd() if path == "-" else Path(path).resolve().parent
        template["workdir"] = str(folder / Path(str(template["workdir"])).expanduser())
    if project := project or client.project or "":
        file.setdefault("project", project)
    name = str(file.get("name") or "")
    found = [one for one in client.services.list(name=name or None, project=file.get("project")) if one["name"] == name]
    if len(found) > 1:
        raise UsageError(f"{name} is the name of several services: give the project")
    return client.services.change(found[0]["id"], {"file": file}) if found else client.services.create(file)


def _number(args: argparse.Namespace, client: Client) -> int:
    return number_of("service", args.service, args.project, client.services.list)


def _shown(args: argparse.Namespace, found: Row) -> None:
    output.one(args, found, lambda: lines(found), name=found["service"]["id"])


def lines(found: Row) -> Iterable[str]:
    """Yield a service with its replicas and revisions."""
    one, traffic = found["service"], found["service"]["traffic"]
    yield clean.line(f"service {one['id']} {one['name']} of project {one['project']}, {one['state']}")
    yield clean.line(f"  address   {one['address']}")
    yield clean.line(
        f"  replicas  {one['ready']} of {one['wanted']} ready, between {one['min']} and {one['max']}; revision"
        f" {one['revision']}" + (f" at {one['canary']} %" if one["canary"] < 100 else "")
    )
    yield clean.line(f"  requests  {traffic['requests_per_s']:g}/s, {one['active']} active, {one['queued']} queued")
    yield clean.line(
        f"  first byte  P50 {_seconds(traffic['first_byte_p50_s'])}, P95 {_seconds(traffic['first_byte_p95_s'])};"
        f" cold start {_seconds(one['cold_start_s'])}"
    )
    if one["fault"]:
        yield clean.line(f"  fault     {one['fault']}")
    for each in found["replicas"]:
        place = f" on {each['node']}" if each["node"] else ""
        yield clean.line(
            f"  replica {each['id']}  {each['state']}  job {each['job']}, revision {each['revision']}{place}"
        )
    for each in found["revisions"]:
        model = f"model {each['model']} of job {each['model_job']}" if each["model_job"] else "model of its file"
        serves = ", cannot serve" if each["failed"] else ", present" if each["number"] == one["revision"] else ""
        yield clean.line(f"  revision {each['number']}  by {each['made_by']}, {model}{serves}")
    for each in found["promotions"]:
        number = "-" if each["value"] is None else f"{each['value']:g}"
        yield clean.line(
            f"  promotion of job {each['job']} by {each['user']}  {each['state']}  {each['metric']} {number}"
            f" ({each['gate']}){'; ' + each['detail'] if each['detail'] else ''}"
        )
    if one["former"]:
        yield clean.line(f"  way back  yard service rollback {one['name']}, to revision {one['former']}")


def _seconds(value: float | None) -> str:
    return f"{value:g} s" if value is not None else "-"


COLUMNS = (
    Column("ID", lambda one: one["id"], right=True),
    Column("SERVICE", lambda one: one["name"]),
    Column("PROJECT", lambda one: one["project"]),
    Column("STATE", lambda one: one["state"]),
    Column("READY", lambda one: f"{one['ready']}/{one['wanted']}", right=True),
    Column("REVISION", lambda one: one["revision"], right=True),
    Column("REQ/S", lambda one: f"{one['traffic']['requests_per_s']:g}", right=True),
    Column("P95", lambda one: _seconds(one["traffic"]["first_byte_p95_s"]), right=True),
    Column("QUEUED", lambda one: one["queued"], right=True),
    Column("ADDRESS", lambda one: one["address"], wide=True),
    Column("FAULT", lambda one: one["fault"], wide=True),
)
