"""``yard webhook``: addresses that are told when jobs of a project change."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.cli.secret import default_project
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard webhook add chat https://example.org/hooks/yard --state FAILED --state COMPLETED
  yard webhook test chat && yard webhook deliveries chat
  yard webhook change chat --off
"""
VERBS = ("list", "add", "show", "change", "delete", "test", "deliveries", "resend")
FORMATS = ("cloudevents", "slack", "feishu", "dingtalk", "wecom")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("name", nargs="?", default="", help="what the webhook is called")
    parser.add_argument("what", nargs="?", default="", help="for add and change its address; for resend the event")
    parser.add_argument("--project", default="", help="whose it is; else the profile's project, else your default one")
    parser.add_argument("--format", choices=FORMATS, help="what is sent: events (default), or messages for a chat")
    parser.add_argument(
        "--state",
        action="append",
        metavar="STATE",
        help="a state of jobs that is told, else every end; may be repeated",
    )
    parser.add_argument(
        "--budgets", action="store_true", default=None, help="tell it that 80 and 100 %% of a budget are used"
    )
    parser.add_argument("--no-budgets", action="store_false", dest="budgets", default=None, help="do not tell it that")
    parser.add_argument(
        "--secret-stdin",
        action="store_true",
        help="read the secret of a Feishu or DingTalk robot from input; none ends it",
    )
    parser.add_argument("--off", action="store_false", dest="active", default=None, help="tell it nothing")
    parser.add_argument("--on", action="store_true", dest="active", default=None, help="tell it again")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    args.secret = sys.stdin.readline().strip() if args.secret_stdin else ""
    if fault := _fault(args):
        raise UsageError(fault)
    with connect(args) as client:
        project = args.project or client.project or default_project(client, "webhooks")
        mine = client.webhooks
        if args.verb == "list":
            output.many(args, mine.list(project), COLUMNS, name=lambda one: one["name"])
        elif args.verb == "deliveries":
            output.many(args, mine.deliveries(project, args.name), TRIED, name=lambda one: one["event"])
        elif args.verb == "test":
            return _test(args, client, project)
        elif args.verb == "add":
            made = mine.set(project, args.name, args.what, **_settings(args))
            output.one(args, made, lambda: _lines(made["webhook"], made["key"]), name=args.name)
        elif args.verb in ("show", "change"):
            act = mine.get if args.verb == "show" else mine.change
            found = act(project, args.name, **_settings(args))
            output.one(args, found, lambda: _lines(found), name=args.name)
        else:
            _end(args, client, project)
    return exits.OK


def _fault(args: argparse.Namespace) -> str:
    """Return what is missing or too much, or an empty text."""
    settings = _settings(args)
    if args.verb != "list" and not args.name:
        return f"say which webhook: yard webhook {args.verb} NAME"
    if args.verb == "list" and args.name:
        return "list takes no name; show does"
    if args.verb == "add" and not args.what:
        return "a webhook needs an address: yard webhook add NAME https://example.org/hook"
    if args.verb == "resend" and not args.what:
        return "say which event: yard webhook resend NAME EVENT; yard webhook deliveries NAME lists them"
    if args.verb not in ("add", "change", "resend") and args.what:
        return f"yard webhook {args.verb} takes a name only"
    if args.verb == "change" and not settings:
        return "say what is to change: an address, --format, --state, --budgets, --secret-stdin, --on or --off"
    if args.verb not in ("add", "change") and settings:
        return f"yard webhook {args.verb} takes no settings; yard webhook change does"
    return ""


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what is set of the webhook; the address too where one is to change."""
    given = {"format": args.format, "states": args.state, "active": args.active, "budgets": args.budgets}
    if args.secret_stdin:
        given["secret"] = args.secret
    if args.verb == "change":
        given["url"] = args.what or None
    return {name: value for name, value in given.items() if value is not None}


def _test(args: argparse.Namespace, client: Client, project: str) -> int:
    told = client.webhooks.test(project, args.name)
    output.one(args, told, lambda: _answer(told), name=told["event"])
    return exits.OK if not told["fault"] else exits.FAILURE


def _answer(told: Row) -> Iterable[str]:
    how = (
        f"failed: {told['fault']}"
        if told["fault"]
        else f"was accepted with status {told['status']}, after {told['took_s']} s"
    )
    yield clean.line(f"the test {how}")
    for text in str(told.get("answer") or "").splitlines():
        yield clean.line(f"  {text}")


def _end(args: argparse.Namespace, client: Client, project: str) -> None:
    """Delete a webhook, or have a delivery sent again."""
    if args.verb == "delete":
        client.webhooks.delete(project, args.name)
        said = f"project {project} has no webhook {args.name}"
    else:
        client.webhooks.resend(project, args.name, args.what)
        said = f"event {args.what} is sent again within seconds"
    output.one(args, {"project": project, "name": args.name}, lambda: [clean.line(said)], name=args.name)


def _lines(one: Row, key: str = "") -> Iterable[str]:
    yield clean.line(f"webhook {one['name']}: {one['url']}" + ("" if one["active"] else ", switched off"))
    told = [*one["states"], *(["budgets"] if one.get("budgets") else [])]
    signed = ", with the signature of its robot" if one.get("has_secret") else ""
    yield clean.line(f"  told      {', '.join(told)}, as {one['format']}{signed}")
    if one.get("delivered_at"):
        yield clean.line(f"  delivered {one['delivered_at']}")
    if one.get("failures"):
        yield clean.line(f"  failed    {one['failures']} times since then: {one['fault']}")
    if one.get("waiting"):
        yield clean.line(f"  waiting   {one['waiting']}" + (f", until {one['retry_at']}" if one["retry_at"] else ""))
    if key:
        yield clean.line(f"  key       {key}")
        yield "  It signs what is sent, and is shown this once."


COLUMNS = (
    Column("WEBHOOK", lambda one: one["name"]),
    Column("URL", lambda one: one["url"]),
    Column("FORMAT", lambda one: one["format"]),
    Column("STATES", lambda one: ",".join(one["states"])),
    Column("ON", lambda one: "yes" if one["active"] else "no"),
    Column("WAITING", lambda one: one["waiting"], right=True),
    Column("FAULT", lambda one: one["fault"]),
    Column("DELIVERED", lambda one: one["delivered_at"], wide=True),
    Column("BY", lambda one: one["made_by"], wide=True),
)
TRIED = (
    Column("TRIED", lambda one: one["tried_at"]),
    Column("EVENT", lambda one: one["type"].removeprefix("switchyard.")),
    Column("JOB", lambda one: one["job"], right=True),
    Column("STATE", lambda one: one["state"]),
    Column("STATUS", lambda one: one["status"], right=True),
    Column("FAULT", lambda one: one["fault"]),
    Column("SECONDS", lambda one: one["took_s"], right=True),
    Column("TRIES", lambda one: one["tries"], right=True),
    Column("NEXT", lambda one: one["next_try_at"]),
    Column("ID", lambda one: one["event"]),
)
