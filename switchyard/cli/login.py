"""``yard login``: remembers a control plane and a token."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard login https://yard.example.org                      asks for the token
  yard login https://yard.example.org --token-stdin < token.txt
  yard login https://lab.example.org --profile lab         use it with --profile lab
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="the address of the control plane")
    parser.add_argument("--token-stdin", action="store_true", help="read the token from standard input")
    parser.add_argument(
        "--project", dest="default_project", default="", help="the project of your new jobs, unless they say another"
    )


def run(args: argparse.Namespace) -> int:
    from switchyard.address import config_path
    from switchyard.client import Client

    token = args.token or os.environ.get("YARD_TOKEN") or _ask(args.token_stdin)
    if not token:
        where = clean.line(args.address.rstrip("/"))
        print(f"error: no token was given; make one on your user page, {where}/user (usage)", file=sys.stderr)
        return exits.USAGE
    with Client(args.address, token) as client:
        me = client.whoami()
        url = client.url
    path = config_path()
    write(path, url, token, args.profile or "", args.default_project)
    name = clean.line(me["user"])
    print(f"you are {name} at {clean.line(url)}; kept in {path}")
    return exits.OK


def write(path: Path, url: str, token: str, profile: str, project: str) -> None:
    """Puts an address into the configuration file, readable by its owner only; what else it holds stays.

    The new file takes the place of the old one in one step: a crash leaves one of them whole.
    """
    import tomllib

    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    profiles = dict(table.pop("profiles", {}))
    entry = {"url": url, "token": token} | ({"project": project} if project else {})
    if profile:
        profiles[profile] = entry
    else:
        table = {key: value for key, value in table.items() if key not in ("url", "token", "project")} | entry
    lines = [f"{key} = {_quoted(value)}" for key, value in table.items() if isinstance(value, str)]
    for name, own in profiles.items():
        lines += ["", f"[profiles.{_quoted(name)}]", *(f"{key} = {_quoted(value)}" for key, value in own.items())]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write("\n".join(lines) + "\n")
    fresh.replace(path)


def _ask(from_stdin: bool) -> str:
    if from_stdin or not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    from getpass import getpass

    return getpass("token: ").strip()


def _quoted(text: object) -> str:
    import json

    return json.dumps(str(text))  # a JSON string is a basic string of TOML
