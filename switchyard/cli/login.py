"""``yard login``: signs in at a control plane by a code that a person confirms there, and stores the token."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

# Bounds of the polling interval and duration, whatever the server says.
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 1.0, 60.0
LONGEST_WAIT_S = 1800.0

EXAMPLES = """
  yard login https://yard.example.org                      shows a code to confirm in a browser
  yard login https://yard.example.org --token-stdin < token.txt
  yard login https://lab.example.org --profile lab         use it with --profile lab
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="the address of the control plane")
    parser.add_argument("--token-stdin", action="store_true", help="read the token from standard input")
    parser.add_argument("--scope", action="append", choices=("read", "submit", "admin"), help="may be repeated")
    parser.add_argument("--days", type=int, default=90, help="for how many days the token is valid")
    parser.add_argument(
        "--project", dest="default_project", default="", help="the project of your new jobs, unless they say another"
    )


def run(args: argparse.Namespace) -> int:
    from switchyard.address import config_path
    from switchyard.client import Client

    token = args.token or os.environ.get("YARD_TOKEN")
    if not token and (args.token_stdin or not sys.stdin.isatty()):
        token = sys.stdin.readline().strip()
        if not token:
            where = clean.line(args.address.rstrip("/"))
            raise UsageError(f"no token was given; make one on your user page, {where}/user")
    if not token:
        with Client(args.address) as client:
            token = by_code(client, args.scope or ["read", "submit"], args.days)
    with Client(args.address, token) as client:
        me = client.whoami()
        url = client.url
    path = config_path()
    write(path, url, token, args.profile or "", args.default_project)
    name = clean.line(me["user"])
    print(f"you are {name} at {clean.line(url)}; kept in {path}")
    return exits.OK


def write(path: Path, url: str, token: str, profile: str, project: str) -> None:
    """Write an address to the configuration file; its other content stays."""
    table, profiles = kept(path)
    entry = {"url": url, "token": token} | ({"project": project} if project else {})
    if profile:
        profiles[profile] = entry
    else:
        table = {key: value for key, value in table.items() if key not in ("url", "token", "project")} | entry
    replace(path, table, profiles)


def kept(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the content of the configuration file: its own entries, and its profiles."""
    import tomllib

    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return table, dict(table.pop("profiles", {}))


def replace(path: Path, table: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the configuration file atomically, readable by its owner only."""
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


def by_code(client: Client, scopes: list[str], days: int) -> str:
    """Show a code, and wait until somebody confirmed it in a browser; return the token.

    Raises ApiProblem for a refusal, and WaitTimeout if nobody confirmed.
    """
    import socket
    import time

    from switchyard.problem import ApiProblem, WaitTimeout

    host = "".join(letter for letter in socket.gethostname() if letter.isprintable())
    asked = client.wire.post("/device-codes", {"name": f"yard on {host}"[:60], "scopes": scopes, "days": days})
    where, code = clean.line(str(asked["verification_uri"])), clean.line(str(asked["user_code"]))
    print(f"open {where} in a browser where you are signed in, and type this code:\n\n    {code}\n", file=sys.stderr)
    interval_s = _bounded(asked["interval"])
    until = time.monotonic() + min(LONGEST_WAIT_S, float(asked["expires_in"]))
    while time.monotonic() < until:
        time.sleep(interval_s)
        try:
            issued = client.wire.post("/device-codes/token", {"device_code": asked["device_code"]})
        except ApiProblem as problem:
            if problem.code == "slow_down":
                interval_s = _bounded(interval_s + 5)
            elif problem.code != "authorization_pending":
                raise
        else:
            return str(issued["access_token"])
    raise WaitTimeout("nobody confirmed the code in time")


def _bounded(seconds: float) -> float:
    return min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, float(seconds)))


def _quoted(text: object) -> str:
    import json

    return json.dumps(str(text))  # a JSON string is a basic string of TOML
