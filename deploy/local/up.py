"""``up``: start the stack, say where it is, and keep it until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from deploy.local.home import Home
from deploy.local.launcher import Access, Interrupted, NotUp, Stack, interrupt_on_signals
from deploy.local.options import DEFAULT_PORT, Options
from deploy.local.service import ROOT
from deploy.local.sign_in import running

EXIT_INTERRUPTED = 130


def port(text: str) -> int:
    """Read a TCP port from 1 to 65535."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")


def backup(text: str) -> str:
    """Read the folder of a backup."""
    folder = Path(text).absolute()
    if not (folder / "manifest.json").is_file():
        raise argparse.ArgumentTypeError(f"{folder} holds no manifest.json; a backup is a folder with one")
    return str(folder)


def simulated(text: str) -> str:
    """Validate what to simulate, with the agent's parser."""
    from agents.devices.vendors.simulated import parse

    try:
        parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``up`` and ``demo`` have in common."""
    parser.add_argument("--port", type=port, default=DEFAULT_PORT, help="TCP port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="delete what earlier runs kept, and start anew")
    parser.add_argument(
        "--restore",
        type=backup,
        metavar="FOLDER",
        help="put a backup of script/backup in the place of what is there, and start with that",
    )
    parser.add_argument(
        "--simulate",
        type=simulated,
        default="",
        metavar="NODES",
        help="add nodes with simulated devices, e.g. 4xdgx-h100,2xatlas-800",
    )
    parser.add_argument(
        "--stages-as-root",
        action="store_true",
        help="started by root where no other user can come to Python, checkout and state: let every job be root",
    )


def chosen(arguments: argparse.Namespace) -> Options:
    """Return the stack's options."""
    return Options(
        arguments.port, arguments.simulate, arguments.fresh, arguments.stages_as_root, arguments.restore or ""
    )


def describe(word: dict[str, Any]) -> str | None:
    """Return one line for an event of the keeper; None if there is nothing to print."""
    match word:
        case {"event": "step", "name": name, "took_s": took_s}:
            return f"  {name:<10} {took_s:5.1f} s"
        case {"event": "say", "text": text}:
            return f"  note: {text}"
        case {"event": "restart", "name": name, "status": status, "log": log}:
            return f"  {name} ended with status {status} and is started again; see {log}"
    return None


def wait_until_up(stack: Stack) -> Access:
    """Print each step of the start, and return the access to the stack. Raises :class:`NotUp`."""
    for word in stack.events():
        if word["event"] == "up":
            return Access(word["url"], word["sign_in"], word["token"], word["took_s"], tuple(word["missing"]))
        if word["event"] == "already":
            raise NotUp("another stack started on the same state folder at the same moment; try again")
        if line := describe(word):
            print(line, flush=True)
    raise AssertionError("the keeper's events end with an exception only")


def introduce(access: Access, home: Home) -> None:
    """Print the address of the dashboard and how to sign in."""
    print(f"\nDashboard   {access.url}")
    print(f"Sign in     {access.sign_in}   (works once)")
    print(f"            {another_link(home)}   makes another")
    print(f"State       {home.path}", flush=True)


def another_link(home: Home) -> str:
    """Return the command that prints a new sign-in link in any shell."""
    named = "" if home == Home.from_environment({}) else f"YARD_HOME={shlex.quote(str(home.path))} "
    return f"{named}{shlex.quote(str(ROOT / 'script' / 'sign-in'))}"


def readiness(access: Access) -> str:
    """Return that all nodes accept work, or which do not."""
    if not access.missing:
        return "Ready."
    first, rest = access.missing[:5], len(access.missing) - 5
    more = f" and {rest} more" if rest > 0 else ""
    return f"Up, but not all nodes take work yet: {', '.join(first)}{more} do not; the agent's log says why."


def refuse_second(access: Access, options: Options) -> None:
    """Raise :class:`NotUp` if the options ask for what a running stack cannot do."""
    if options.fresh:
        raise NotUp(f"a stack runs at {access.url}; stop it with Ctrl-C first, then --fresh starts anew")
    if options.restore:
        raise NotUp(
            f"a stack runs at {access.url}; stop it with Ctrl-C first, then --restore puts a backup in its place"
        )
    if options.simulate:
        raise NotUp(f"a stack runs at {access.url}; stop it with Ctrl-C first, then --simulate adds nodes to it")


def main(arguments: argparse.Namespace) -> int:
    """Run ``up``; return the exit status."""
    home, options = Home.from_environment(), chosen(arguments)
    interrupt_on_signals()
    try:
        if access := running(home):
            refuse_second(access, options)
            print("The stack runs already.")
            introduce(access, home)
            return 0
        print(f"Starting Switchyard in {home.path}", flush=True)
        with Stack(home, options) as stack:
            try:
                access = wait_until_up(stack)
                introduce(access, home)
                print(f"\n{readiness(access)} Ctrl-C stops everything.", flush=True)
                for word in stack.events():
                    if line := describe(word):
                        print(line, flush=True)
            except Interrupted:
                print("\nStopping ...", flush=True)
        print("Stopped; no process is left.")
        return 0
    except Interrupted:
        return EXIT_INTERRUPTED
    except NotUp as reason:
        print(f"switchyard: {reason}", file=sys.stderr)
        return 1
