"""``yard trace``: profiles what a running stage does, lists past profiles and downloads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard trace 42 -o busy.json                   ten seconds by py-spy; open the file in speedscope
  yard trace 42 --stage train --rank 3 --tool torch --seconds 30
  yard trace 42 --list
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("--stage", metavar="NAME", default="", help="the stage, where several run")
    parser.add_argument("--rank", type=int, metavar="N", default=0, help="the rank of the node (0)")
    parser.add_argument("--tool", default="py-spy", help="py-spy or torch, as its job file allows (py-spy)")
    parser.add_argument("--seconds", type=int, metavar="N", default=10, help="for how long, from 1 to 120 (10)")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--list", action="store_true", help="list past profiles instead")
    either.add_argument("--get", metavar="ID", help="download a past profile instead, by its id")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the profile to this file")
    parser.add_argument("--json", action="store_true", help="print JSON of the REST interface")


def run(args: argparse.Namespace) -> int:
    if args.get and not args.output:
        raise UsageError("--get needs -o FILE, to which the profile is written")
    with connect(args) as client:
        if args.list:
            shape = {"output": "json" if args.json else None, "columns": None, "no_headers": False}
            output.many(type(args)(**shape), client.jobs.traces(args.job), COLUMNS, name=lambda one: one["id"])
            return exits.OK
        if args.get:
            return _download(client, args, args.get)
        wanted = {name: getattr(args, name) for name in ("tool", "seconds", "stage", "rank", "reason")}
        asked = client.jobs.trace(args.job, **wanted)
        where = f"rank {asked['rank']} of {asked['stage']} on {asked['node']}"
        print(clean.line(f"{asked['tool']} profiles {where} for {asked['seconds']} s"), file=sys.stderr)
        found = client.jobs.wait_for_trace(args.job, asked["id"])
        if args.json:
            print(clean.escaped(found))
        if found["state"] != "READY":
            print(f"error: {clean.line(found['detail'])} (failed)", file=sys.stderr)
            return exits.FAILURE
        if args.output:
            return _download(client, args, found["id"])
        if not args.json:
            print(clean.line(f"{units.size(found['size_bytes'])}: yard trace {args.job} --get {found['id']} -o FILE"))
    return exits.OK


def _download(client: Client, args: argparse.Namespace, trace: str) -> int:
    content = client.jobs.trace_content(args.job, trace)
    try:
        Path(args.output).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{args.output} cannot be written: {error.strerror}") from None
    print(f"{units.size(len(content))} in {clean.line(args.output)}", file=sys.stderr)
    return exits.OK


COLUMNS = (
    Column("ID", lambda one: one["id"]),
    Column("STAGE", lambda one: f"{one['stage']}.{one['attempt']}.{one['rank']}"),
    Column("TOOL", lambda one: one["tool"]),
    Column("SECONDS", lambda one: str(one["seconds"]), right=True),
    Column("STATE", lambda one: one["state"]),
    Column("SIZE", lambda one: units.size(one["size_bytes"]) if one["size_bytes"] else "", right=True),
    Column("ASKED", lambda one: units.clock(one["asked_at"])),
    Column("BY", lambda one: one["asked_by"]),
    Column("WHY", lambda one: one["detail"]),
)
