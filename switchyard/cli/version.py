"""``yard version``: shows the versions of client and control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard import __version__
from switchyard.cli import clean, exits, output
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard version                both
  yard version --client       this command only; asks nobody
  yard version --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--client", action="store_true", help="only the version of this command")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    told: dict[str, object] = {"client": __version__, "server": None, "url": None}
    if not args.client:
        from switchyard.problem import Unreachable

        try:
            with connect(args) as client:
                found = client.version()
                told |= {"server": found.get("server"), "url": client.url}
        except Unreachable as error:
            told["unreachable"] = str(error)
    output.one(args, told, lambda: [clean.line(text) for text in _text(told)])
    return exits.UNREACHABLE if "unreachable" in told else exits.OK


def _text(told: dict[str, object]) -> list[str]:
    lines = [f"yard {told['client']}"]
    if told["server"]:
        lines.append(f"control plane {told['server']} at {told['url']}")
    return lines + ([f"control plane: {told['unreachable']}"] if "unreachable" in told else [])
