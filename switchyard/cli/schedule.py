"""``yard schedule``: makes, lists, pauses and runs schedules of job files."""

from __future__ import annotations

from collections.abc import Iterable
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
  yard schedule create nightly train.yaml --cron "0 3 * * 1-5" --zone Europe/Berlin
  yard schedule && yard schedule show nightly
  yard schedule pause nightly && yard schedule run nightly
"""
VERBS = ("list", "create", "show", "change", "pause", "resume", "run", "delete")
_SETTINGS = ("cron", "zone", "overlap", "catch_up", "starts_at", "ends_at")


def options(parser: argparse.ArgumentParser) -> None:
    from switchyard.cli.recurrence import moment

    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("schedule", nargs="?", default="", help="its name or number")
    parser.add_argument(
        "file", nargs="?", default="", help="for create and change: the job file; - reads standard input"
    )
    parser.add_argument("--cron", help="minute, hour, day of the month, month, day of the week: 0 3 * * 1-5")
    parser.add_argument("--zone", help="the time zone of the line, such as Europe/Berlin; UTC is the default")
    parser.add_argument(
        "--overlap",
        choices=("skip", "allow", "replace"),
        help="while the job before has not ended: skip the time (default), submit all the same, or cancel that job",
    )
    parser.add_argument(
        "--catch-up",
        choices=("last", "none", "all"),
        help="of the times that the server missed, submit the last one (default), none or all",
    )
    parser.add_argument("--from", dest="starts_at", metavar="TIME", type=moment, help="no time before this one counts")
    parser.add_argument("--until", dest="ends_at", metavar="TIME", type=moment, help="no time after this one counts")
    parser.add_argument("--project", default="", help="whose schedules; for create, where the jobs are submitted")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="any key of the job file")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if fault := _fault(args):
        raise UsageError(fault)
    with connect(args) as client:
        if args.verb == "list":
            found = client.schedules.list(project=args.project or None, name=args.schedule or None)
            output.many(args, found, COLUMNS, name=lambda one: one["id"])
        elif args.verb == "create":
            _shown(args, _create(args, client))
        elif args.verb == "show":
            _shown(args, client.schedules.get(_number(args, client)))
        elif args.verb in ("change", "pause", "resume"):
            _shown(args, client.schedules.change(_number(args, client), _patch(args, client)))
        elif args.verb == "run":
            return _run(args, client)
        else:
            number = _number(args, client)
            client.schedules.delete(number)
            output.one(args, {"id": number}, lambda: [f"schedule {number} is deleted; its jobs stay"], name=number)
    return exits.OK


def _fault(args: argparse.Namespace) -> str:
    """Return what is missing or too much, or an empty text."""
    settings = [name for name in _SETTINGS if getattr(args, name) is not None]
    if args.verb != "list" and not args.schedule:
        return f"say which schedule: yard schedule {args.verb} NAME"
    if args.verb == "create" and not (args.file and args.cron):
        return 'a schedule needs a job file and --cron: yard schedule create NAME FILE --cron "0 3 * * *"'
    if args.verb == "change" and not (settings or args.file):
        return "say what is to change: a job file, --cron, --zone, --overlap, --catch-up, --from or --until"
    if args.verb not in ("create", "change") and (settings or args.file or args.set):
        return f"yard schedule {args.verb} takes no file and no settings; yard schedule change does"
    return ""


def _job(args: argparse.Namespace, client: Client) -> dict[str, Any]:
    """Return the job file of the command line."""
    from switchyard import jobfile

    spec = jobfile.read_text(jobfile.text_of(args.file), args.file)
    jobfile.put(spec, args.set)
    if project := args.project or client.project:
        spec["project"] = project
    return spec


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    return {name: value.isoformat() if name.endswith("_at") else value for name, value in given.items()}


def _create(args: argparse.Namespace, client: Client) -> Row:
    settings = _settings(args)
    return client.schedules.create(args.schedule, _job(args, client), settings.pop("cron"), **settings)


def _patch(args: argparse.Namespace, client: Client) -> dict[str, Any]:
    if args.verb != "change":
        return {"paused": args.verb == "pause"}
    return _settings(args) | ({"job": _job(args, client)} if args.file else {})


def _number(args: argparse.Namespace, client: Client) -> int:
    return number_of("schedule", args.schedule, args.project, client.schedules.list)


def _run(args: argparse.Namespace, client: Client) -> int:
    done = client.schedules.run(_number(args, client))
    kind = "array" if done.get("is_array") else "job"
    said = f"submitted {kind} {done['job']}" if done.get("job") else f"refused: {done.get('detail')}"
    output.one(args, done, lambda: [clean.line(said)], name=done.get("job"))
    return exits.OK if done.get("job") else exits.USAGE


def _shown(args: argparse.Namespace, found: Row) -> None:
    output.one(args, found, lambda: _lines(found), name=found["schedule"]["id"])


def _lines(found: Row) -> Iterable[str]:
    """Yield a schedule with its next times and what became of the last ones."""
    one = found["schedule"]
    yield clean.line(f"schedule {one['id']} {one['name']} of project {one['project']}, submitted as {one['user']}")
    yield clean.line(f"  times     {one['cron']} ({one['zone']})" + (", paused" if one.get("paused") else ""))
    yield clean.line(f"  rules     overlap {one['overlap']}, catch up {one['catch_up']}")
    if one.get("fault"):
        yield clean.line(f"  refused   {one['refusals']} times in a row: {one['fault']}")
    for at in found.get("times") or []:
        yield clean.line(f"  next      {at}")
    for done in found.get("runs") or []:
        yield clean.line(f"  {done['due_at']}  {_outcome(done)}")


def _outcome(done: Row) -> str:
    if done.get("job"):
        return f"submitted {'array' if done.get('is_array') else 'job'} {done['job']}"
    return f"{done['outcome']}: {done.get('detail')}"


COLUMNS = (
    Column("ID", lambda one: one["id"], right=True),
    Column("SCHEDULE", lambda one: one["name"]),
    Column("PROJECT", lambda one: one["project"]),
    Column("USER", lambda one: one["user"]),
    Column("CRON", lambda one: one["cron"]),
    Column("ZONE", lambda one: one["zone"]),
    Column("NEXT", lambda one: "paused" if one.get("paused") else one.get("next_at")),
    Column("LAST", lambda one: _outcome(one["last"]) if one.get("last") else None),
    Column("OVERLAP", lambda one: one["overlap"], wide=True),
    Column("CATCH UP", lambda one: one["catch_up"], wide=True),
    Column("FAULT", lambda one: one.get("fault"), wide=True),
)
