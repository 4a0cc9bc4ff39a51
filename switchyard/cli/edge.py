"""``yard edge``: submits, lists, shows and cancels jobs on this node itself, while it is cut off."""

from __future__ import annotations

import base64
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from switchyard import jobfile, node_socket
from switchyard.cli import clean, exits, output, units
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard edge submit job.yaml                  run it here, although the control plane is out of reach
  yard edge list                             how yours stand, and which the control plane has by now
  yard edge logs 01985d0c-3f7a-7b1e-9c55-0242ac120002 --follow
"""
FINAL: Final = ("COMPLETED", "FAILED", "CANCELLED")
POLL_S: Final = 0.5


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("submit", "list", "show", "logs", "cancel"), help="what to do")
    parser.add_argument("what", nargs="?", default="", help="a job file for submit (- for standard input), else an id")
    parser.add_argument("--socket", default="", help=f"the agent's socket ($YARD_EDGE_SOCKET, {node_socket.USUAL})")
    parser.add_argument("--id", default="", help="submit under this UUID of version 7; the same once more is the same")
    parser.add_argument("--stderr", action="store_true", help="with logs: what it wrote to its standard error")
    parser.add_argument("-f", "--follow", action="store_true", help="with logs: until the job ends")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") == bool(args.what):
        raise UsageError("submit needs a job file, the others an id, and list takes neither")
    path = node_socket.path_of(args.socket)
    if args.action == "list":
        output.many(args, node_socket.ask(path, "list"), COLUMNS, name=lambda row: row["id"])
        return exits.OK
    if args.action == "logs":
        return _logs(args, path)
    if args.action == "submit":
        told = node_socket.ask(path, "submit", id=args.id or node_socket.uuid7(), job=jobfile.read(args.what))
        output.one(args, told, lambda: [clean.line(f"accepted {told['id']} ({told['name']})")], name=told["id"])
    else:
        told = node_socket.ask(path, args.action, id=args.what)
        output.one(args, told, lambda: _lines(told), name=told["id"])
    return exits.OK


def _logs(args: argparse.Namespace, path: str) -> int:
    offset = 0
    while True:
        asked: dict[str, Any] = {"id": args.what, "stream": "err" if args.stderr else "out", "offset": offset}
        found = node_socket.ask(path, "logs", **asked)
        piece = base64.b64decode(found["data"])
        sys.stdout.write(clean.lines(piece.decode(errors="replace")))
        sys.stdout.flush()
        offset = found["offset"]
        if not piece and (found["is_over"] or not args.follow):
            return exits.OK
        if not piece:
            time.sleep(POLL_S)


def _lines(told: Row) -> list[str]:
    lines = [f"{name:<12}{value}" for name, value in _facts(told) if value not in (None, "", [])]
    return [clean.line(each) for each in lines]


def _facts(told: Row) -> list[tuple[str, Any]]:
    return [
        ("id", told["id"]),
        ("name", told["name"]),
        ("project", told["project"]),
        ("account", told["account"]),
        ("state", told["state"]),
        ("job", _number(told)),
        ("accepted", f"{units.span(told['accepted_s'])} ago"),
        ("began", None if told["begun_s"] is None else f"{units.span(told['begun_s'])} ago"),
        ("ran", None if told["ran_s"] is None else units.span(told["ran_s"])),
        ("exit code", told["exit_code"]),
        ("cause", told["cause"]),
        ("detail", told["detail"]),
        ("devices", ", ".join(told["devices"])),
        ("note", told["note"]),
    ]


def _number(row: Row) -> str:
    return "not in the record yet" if row["number"] is None else str(row["number"])


COLUMNS = [
    Column("ID", lambda row: row["id"]),
    Column("NAME", lambda row: row["name"]),
    Column("PROJECT", lambda row: row["project"]),
    Column("STATE", lambda row: output.paint(row["state"])),
    Column("JOB", lambda row: row["number"], right=True),
    Column("ACCEPTED", lambda row: f"{units.span(row['accepted_s'])} ago", right=True),
    Column("NOTE", lambda row: row["note"]),
    Column("ACCOUNT", lambda row: row["account"], wide=True),
    Column("DEVICES", lambda row: ",".join(row["devices"]), wide=True),
]
