"""``yard session``: starts notebooks and shells from templates, and opens ports of running jobs in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client, JobRecord

EXAMPLES = """
  yard session start notebook --set kind=gpu    submits the template, waits, and opens the notebook
  yard session start shell --set kind=cpu       a shell on a device; its end ends the job
  yard session && yard session open 17 board && yard session stop 17
"""
VERBS: Final = ("list", "start", "open", "stop")
POLL_S: Final = 1.0
# A template of this name has no port: its session is a shell in the terminal.
SHELL: Final = "shell"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument("name", nargs="?", default="", help="for start: a template; for open and stop: a job")
    parser.add_argument("port", nargs="?", default="", help="for open: the port's name, where a job has several")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="for start: a parameter's value")
    parser.add_argument("--project", default="", help="for start: whose job it is")
    parser.add_argument("--stage", default="", help="for open: the stage, where several have this port")
    parser.add_argument("--rank", type=int, default=0, help="for open: the rank of the node")
    parser.add_argument("--reason", default="", help="for open and stop: why; it is recorded with the job")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open nothing")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb != "list" and not args.name:
        raise UsageError(f"say which: yard session {args.verb} {'TEMPLATE' if args.verb == 'start' else 'JOB'}")
    if args.verb != "start" and args.set:
        raise UsageError("--set belongs to yard session start")
    with connect(args) as client:
        if args.verb == "list":
            output.many(args, client.sessions(), COLUMNS, name=lambda one: one["name"])
        elif args.verb == "start":
            return _start(args, client)
        elif args.verb == "stop":
            made = client.jobs.cancel(args.name, reason=args.reason)
            output.one(args, made, lambda: [clean.line(f"job {made['number']} ends")], name=made["number"])
        else:
            _open(args, client, args.name, args.port)
    return exits.OK


def _start(args: argparse.Namespace, client: Client) -> int:
    from switchyard.cli.template import values

    spec = client.templates.fill(args.name, values(args.set), project=args.project or client.project or "")
    job = client.jobs.submit(spec)
    print(clean.line(f"submitted job {job.number} ({job.name}); Ctrl-C leaves it"), file=sys.stderr, flush=True)
    port = _named(client, job)
    if not _until_there(client, job, port):
        print(clean.line(f"error: job {job.number} ended: yard why {job.number} (failed)"), file=sys.stderr)
        return exits.FAILURE
    if args.name == SHELL:
        return _shell(args, client, job)
    if port:
        _open(args, client, str(job.number), port)
    return exits.OK


def _named(client: Client, job: JobRecord) -> str:
    """Return the first port that the job names; empty without one."""
    found = client.jobs.ports(job)
    return str(found[0]["name"]) if found else ""


def _until_there(client: Client, job: JobRecord, port: str) -> bool:
    """Wait until the job runs, and listens on its port if it has one; return whether it did before it ended."""
    while not job.refresh().is_final:
        if port:
            is_there = any(each["listens"] and each["name"] == port for each in client.jobs.ports(job))
        else:
            is_there = job["state"] == "RUNNING"
        if is_there:
            return True
        time.sleep(POLL_S)
    return False


def _shell(args: argparse.Namespace, client: Client, job: JobRecord) -> int:
    """Open a shell in the job on this terminal; the job ends with it."""
    terminal = ["-it"] if sys.stdin.isatty() else ["-i"]
    url, token = client.wire.address
    environment = {**os.environ, "YARD_URL": url, "YARD_TOKEN": token}
    try:
        return subprocess.call(
            [sys.executable, "-m", "switchyard", "exec", *terminal, str(job.number)], env=environment
        )
    finally:
        client.jobs.cancel(job, reason="its shell ended")


def _open(args: argparse.Namespace, client: Client, job: str, port: str) -> None:
    name = port or _only(client, job)
    opened: Any = client.jobs.open_port(job, name, stage=args.stage, rank=args.rank, reason=args.reason)
    output.one(args, opened, lambda: [opened["url"]], name=opened["url"])
    if not args.no_browser and args.output is None and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(opened["url"])


def _only(client: Client, job: str) -> str:
    """Return the only port that a job names."""
    names = sorted({each["name"] for each in client.jobs.ports(job)})
    if len(names) != 1:
        told = f"has the ports {', '.join(names)}; name one" if names else "names no ports in its file"
        raise UsageError(f"job {job} {told}")
    return names[0]


COLUMNS = (
    Column("JOB", lambda one: str(one["job"]), right=True),
    Column("NAME", lambda one: one["job_name"]),
    Column("PORT", lambda one: one["name"]),
    Column("STAGE", lambda one: one["stage"]),
    Column("STATE", lambda one: one["state"]),
    Column("LISTENS", lambda one: "yes" if one["listens"] else "no"),
    Column("NODE", lambda one: one["node"]),
    Column("USER", lambda one: one["user"]),
    Column("USED", lambda one: units.clock(one["visited_at"]) if one["visited_at"] else ""),
    Column("NUMBER", lambda one: str(one["port"]), right=True, wide=True),
)
