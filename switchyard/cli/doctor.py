"""``yard doctor``: checks the connection to the control plane, and its installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard import __version__
from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.problem import ApiProblem, Unreachable

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard doctor                what works and what does not, a line each
  yard doctor --json
  yard doctor || page-the-administrator
"""


def options(parser: argparse.ArgumentParser) -> None:
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    """Exit with 0 if all checks succeed, 1 if one fails, and as usual if the control plane cannot be reached."""
    found: list[Row] = []
    status = exits.OK
    try:
        with connect(args) as client:
            server = client.version()
            found.append(_check("server", True, f"{server['server']} at {client.url}, cluster {server['cluster']}"))
            same = server["server"].split(".")[:2] == __version__.split(".")[:2]
            found.append(_check("versions", same, f"this command is {__version__}, the server {server['server']}"))
            who = client.whoami()
            found.append(_check("token", True, f"{who['user']}, may {', '.join(who['scopes'])}"))
            found += client.health()["checks"]
    except Unreachable as error:
        found.append(_check("server", False, str(error)))
        status = exits.UNREACHABLE
    except ApiProblem as error:
        found.append(_check("token", False, str(error)))
        status = exits.of_problem(error.status, error.code)
    if status == exits.OK and not all(one["ok"] for one in found):
        status = exits.FAILURE
    told = {"ok": status == exits.OK, "checks": found}
    output.one(args, told, lambda: [clean.line(_line(one)) for one in found])
    return status


def _check(name: str, ok: bool, says: str) -> Row:
    return {"name": name, "ok": ok, "vital": True, "says": says}


def _line(one: Row) -> str:
    return f"{'ok  ' if one['ok'] else 'FAIL'}  {one['name']:<10} {one['says']}".rstrip()
