"""``yard function``: deploys, calls, lists, shows and deletes functions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.demand import devices
from switchyard.cli.named import number_of
from switchyard.cli.output import Column, Row
from switchyard.cli.readiness import wait_until_ready
from switchyard.cli.spans import seconds
from switchyard.problem import SwitchyardError, UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard function deploy add.py --concurrency 4 --wait
  yard function invoke add -d '[1, 2]'
  yard function invoke add -d @event.json --async && yard function result add 17
"""
VERBS = ("list", "deploy", "show", "invoke", "calls", "result", "retry", "logs", "delete")
LARGEST_CODE = 65_536
# Options of a function that are numbers, by the name of their option here.
_NUMBERS = ("concurrency", "batch", "max_wait_ms", "tries", "min", "max")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("function", nargs="?", default="", help="its name or number; for deploy: the file")
    parser.add_argument("call", nargs="?", type=int, help="for result and retry: the number of a queued call")
    parser.add_argument("--project", default="", help="whose functions")
    made = parser.add_argument_group("for deploy")
    made.add_argument("--name", help="its name; the default is that of the file")
    made.add_argument("--workdir", metavar="DIR", help="send this folder along; the file is in it")
    made.add_argument("--concurrency", type=int, metavar="N", help="calls that a replica runs at once (1)")
    made.add_argument("--batch", type=int, metavar="N", help="the most events that handle_batch gets (1)")
    made.add_argument("--max-wait-ms", type=int, metavar="N", help="how long an event waits for others (10)")
    made.add_argument("--time", dest="call_s", metavar="TIME", type=seconds, help="how long a call may take (30s)")
    made.add_argument("--tries", type=int, metavar="N", help="how often a queued call may fail (3)")
    made.add_argument("--min", type=int, metavar="N", help="replicas that are kept warm (0)")
    made.add_argument("--max", type=int, metavar="N", help="the most replicas (4)")
    made.add_argument("--idle", metavar="TIME", type=seconds, help="how long without calls until it sleeps (5m)")
    made.add_argument("--devices", metavar="ASK", help="of each replica: gpu, gpu:0.5, H100:1, as for jobs")
    made.add_argument("--gpus", type=int, metavar="N", help="of each replica; as --devices gpu:N")
    made.add_argument("--cpus", type=float, metavar="N", help="cores of each replica (0.1)")
    made.add_argument("--memory", metavar="SIZE", help="memory of each replica (128MiB)")
    made.add_argument("--priority", metavar="CLASS", help="the class of its replicas")
    made.add_argument("--pool", help="the pool of its replicas")
    made.add_argument("--env", action="append", default=[], metavar="K=V", help="an environment variable")
    made.add_argument("--setup", metavar="FILE", help="a YAML file with the key setup of a job file")
    made.add_argument("--set", action="append", default=[], metavar="K=V", help="any key of the job file of a replica")
    made.add_argument("--wait", action="store_true", help="wait until it answers")
    called = parser.add_argument_group("for invoke")
    called.add_argument("-d", "--data", metavar="JSON", help="the event; @FILE reads a file, - standard input")
    called.add_argument("--async", dest="later", action="store_true", help="leave it in the queue; prints its number")
    called.add_argument("--key", default="", help="with --async: leaving it twice under one key leaves it once")
    parser.add_argument("--timeout", metavar="TIME", type=seconds, default=900.0, help="how long to wait here")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb != "list" and not args.function:
        what = "FILE" if args.verb == "deploy" else "NAME"
        raise UsageError(f"say which function: yard function {args.verb} {what}")
    if args.verb in ("result", "retry") and args.call is None:
        raise UsageError(f"say which call: yard function {args.verb} NAME NUMBER")
    with connect(args) as client:
        if args.verb == "list":
            found = client.functions.list(project=args.project or None, name=args.function or None)
            output.many(args, found, COLUMNS, name=lambda one: one["id"])
        elif args.verb == "deploy":
            _shown(args, _deployed(args, client))
        else:
            _act(args, client, _number(args, client))
    return exits.OK


def _act(args: argparse.Namespace, client: Client, number: int) -> None:
    functions = client.functions
    if args.verb == "show":
        _shown(args, functions.get(number))
    elif args.verb == "invoke" and args.later:
        _call_shown(args, functions.leave(number, _event(args.data), key=args.key))
    elif args.verb == "invoke":
        print(json.dumps(functions.invoke(number, _event(args.data), timeout_s=args.timeout), ensure_ascii=False))
    elif args.verb == "calls":
        output.many(args, functions.calls(number), CALL_COLUMNS, name=lambda one: one["id"])
    elif args.verb == "result":
        _call_shown(args, functions.call(number, args.call))
    elif args.verb == "retry":
        _call_shown(args, functions.retry(number, args.call))
    elif args.verb == "logs":
        _logs(client, number)
    else:
        functions.delete(number)
        output.one(args, {"id": number}, lambda: [f"function {number} is deleted; its replicas end"], name=number)


def _deployed(args: argparse.Namespace, client: Client) -> Any:
    """Make a function of a file, or change the one of its name; return it."""
    path = Path(args.function)
    name = args.name or re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-")
    project = args.project or client.project or ""
    body: dict[str, Any] = {**_code(args, client, path), "options": _options(args)}
    found = list(client.functions.list(name=name, project=project or None))
    if len(found) > 1:
        raise UsageError(f"{name} is the name of several functions: give --project")
    if found:
        made: Any = client.functions.change(found[0]["id"], body)
    else:
        made = client.functions.create(name, **({"project": project} if project else {}), **body)
    if not args.wait:
        return made
    return wait_until_ready("function", made["function"]["id"], client.functions.get, args.timeout)


def _code(args: argparse.Namespace, client: Client, path: Path) -> dict[str, Any]:
    """Return what is sent of the code: its text, or the bundle of a folder."""
    try:
        content = path.read_bytes()
        if not args.workdir and len(content) <= LARGEST_CODE:
            return {"code": content.decode(), "file": path.name}
        folder = Path(args.workdir or path.resolve().parent).resolve()
        return {
            "bundle": client.upload(folder),
            "file": path.resolve().relative_to(folder).as_posix(),
        }
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be sent: {error}") from None


def _options(args: argparse.Namespace) -> dict[str, Any]:
    from switchyard import jobfile

    found: dict[str, Any] = {name: getattr(args, name) for name in _NUMBERS if getattr(args, name) is not None}
    for name, span in (("timeout_s", args.call_s), ("idle_s", args.idle)):
        if span is not None:
            found[name] = max(1, round(span))
    template: dict[str, Any] = {
        key: getattr(args, key) for key in ("cpus", "memory", "priority", "pool") if getattr(args, key) is not None
    }
    if ask := args.devices or (f"gpu:{args.gpus}" if args.gpus else ""):
        template["devices"] = devices(ask)
    if args.setup:
        given = jobfile.read_text(jobfile.text_of(args.setup), args.setup)
        template["setup"] = given.get("setup", given)
    if args.env:
        template["env"] = dict(_pair(text) for text in args.env)
    jobfile.put(template, list(args.set))
    return {**found, **({"template": template} if template else {})}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--env {text!r} is no K=V")
    return name, value


def _event(given: str | None) -> Any:
    """Return the event of ``--data``; null without one."""
    if given is None:
        return None
    try:
        text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text() if given.startswith("@") else given
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the event is no JSON: {error}") from None


def _logs(client: Client, number: int) -> None:
    """Print what the newest replica printed."""
    jobs = [one["job"] for one in client.functions.get(number)["replicas"] if one["job"]]
    if not jobs:
        raise SwitchyardError("no replica of it has run yet")
    for text in client.jobs.logs(max(jobs)):
        print(text, end="")


def _number(args: argparse.Namespace, client: Client) -> int:
    return number_of("function", args.function, args.project, client.functions.list)


def _shown(args: argparse.Namespace, found: Row) -> None:
    output.one(args, found, lambda: lines(found), name=found["function"]["id"])


def _call_shown(args: argparse.Namespace, found: Any) -> None:
    output.one(args, found, lambda: _call_lines(found), name=found["id"])


def _call_lines(found: Row) -> Iterable[str]:
    yield clean.line(f"call {found['id']}  {found['state']}")
    if found["fault"]:
        yield clean.line(f"  fault   {found['fault']} (tried {found['tries']} times)")
    if found["state"] == "DONE":
        yield clean.line(f"  result  {json.dumps(found['result'], ensure_ascii=False)}")


def lines(found: Row) -> Iterable[str]:
    """Yield a function with its replicas."""
    one, traffic, queue = found["function"], found["function"]["traffic"], found["function"]["queue"]
    yield clean.line(f"function {one['id']} {one['name']} of project {one['project']}, {one['state']}")
    yield clean.line(f"  address   {one['address']}")
    yield clean.line(
        f"  replicas  {one['ready']} of {one['wanted']} ready, between {one['min']} and {one['max']};"
        f" {one['concurrency']} at once, batches of {one['batch']}"
    )
    yield clean.line(
        f"  calls     {traffic['requests_per_s']:g}/s, {one['errors']} errors, {one['cold']} cold in five minutes;"
        f" P95 {_span(traffic['first_byte_p95_s'])}, cold start {_span(one['cold_start_s'])}"
    )
    yield clean.line(
        f"  queue     {queue['queued']} wait, {queue['running']} run, {queue['done']} done, {queue['dead']} given up"
    )
    if one["fault"]:
        yield clean.line(f"  fault     {one['fault']}")
    for each in found["replicas"]:
        if each["state"] != "ENDED":
            place = f" on {each['node']}" if each["node"] else ""
            yield clean.line(f"  replica {each['id']}  {each['state']}  job {each['job']}{place}")


def _span(value: float | None) -> str:
    return f"{value:g} s" if value is not None else "-"


COLUMNS = (
    Column("ID", lambda one: one["id"], right=True),
    Column("FUNCTION", lambda one: one["name"]),
    Column("PROJECT", lambda one: one["project"]),
    Column("STATE", lambda one: one["state"]),
    Column("READY", lambda one: f"{one['ready']}/{one['wanted']}", right=True),
    Column("REQ/S", lambda one: f"{one['traffic']['requests_per_s']:g}", right=True),
    Column("P95", lambda one: _span(one["traffic"]["first_byte_p95_s"]), right=True),
    Column("COLD", lambda one: _span(one["cold_start_s"]), right=True),
    Column("ERRORS", lambda one: one["errors"], right=True),
    Column("QUEUED", lambda one: one["queue"]["queued"], right=True),
    Column("ADDRESS", lambda one: one["address"], wide=True),
    Column("FAULT", lambda one: one["fault"], wide=True),
)
CALL_COLUMNS = (
    Column("CALL", lambda one: one["id"], right=True),
    Column("STATE", lambda one: one["state"]),
    Column("TRIES", lambda one: one["tries"], right=True),
    Column("STATUS", lambda one: one["status"] or "", right=True),
    Column("KEY", lambda one: one["key"], wide=True),
    Column("USER", lambda one: one["user"]),
    Column("MADE", lambda one: one["made_at"]),
    Column("FAULT", lambda one: one["fault"], wide=True),
)
