"""``yard secret``: sets, lists and deletes secrets of a project. A value is never an argument."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Column
from switchyard.problem import SwitchyardError, UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

LARGEST = 48 * 1024
EXAMPLES = """
  yard secret set HF_TOKEN < token.txt            or without "<": it asks, and shows nothing
  yard secret set TLS_KEY --file key.pem --project vision
  yard secret list && yard secret delete HF_TOKEN
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("set", "list", "delete"))
    parser.add_argument("name", nargs="?", default="", help="what job files call it")
    parser.add_argument("--project", default="", help="whose it is; else the profile's project, else your default one")
    parser.add_argument(
        "--file", type=Path, help="the value is the content of this file, as it is; else standard input, without its "
        "last line break",
    )  # fmt: skip
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") == bool(args.name):
        said = "list takes no name" if args.name else f"say the name of the secret: yard secret {args.action} NAME"
        raise UsageError(said)
    if args.file is not None and args.action != "set":
        raise UsageError("--file is for set")
    value = _value(args) if args.action == "set" else ""
    with connect(args) as client:
        project = args.project or client.project or default_project(client)
        if args.action == "list":
            output.many(args, client.secrets.list(project), COLUMNS, name=lambda row: row["name"])
        elif args.action == "set":
            told = client.secrets.set(project, args.name, value)
            output.one(
                args,
                told,
                lambda: [clean.line(f"secret {told['name']} of project {project} has version {told['version']}")],
                name=told["name"],
            )
        else:
            client.secrets.delete(project, args.name)
            gone = {"name": args.name, "project": project}
            output.one(args, gone, lambda: [clean.line(f"project {project} has no secret {args.name}")], name=args.name)
    return exits.OK


def _value(args: argparse.Namespace) -> str:
    """Return the value, from a file, from standard input, or typed without echo."""
    try:
        if args.file is not None:
            with args.file.open("rb") as file:
                content: bytes = file.read(LARGEST + 1)
                return content.decode()
        if sys.stdin.isatty():
            from getpass import getpass

            return getpass(f"value of {args.name}: ")
        return sys.stdin.buffer.read(LARGEST + 2).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SwitchyardError("the value must be UTF-8 text; write anything else in base64") from None
    except OSError as error:
        raise SwitchyardError(f"{args.file} cannot be read: {error.strerror}") from None


def default_project(client: Client, what: str = "secrets") -> str:
    """Return the default project of this user's jobs; ``what`` is whose it is asked for."""
    who = client.whoami()
    if name := who.get("default_project"):
        return str(name)
    names = [str(one["project"]) for one in who.get("projects") or []]
    if len(names) == 1:
        return names[0]
    raise UsageError(f"say whose {what}: --project NAME" + (f" ({', '.join(names)})" if names else ""))


COLUMNS = (
    Column("NAME", lambda one: one["name"]),
    Column("VERSION", lambda one: one["version"], right=True),
    Column("SET AT", lambda one: one.get("updated_at")),
    Column("BY", lambda one: one.get("updated_by")),
    Column("LAST USED", lambda one: one.get("last_used_at")),
)
