"""``yard logout``: revokes the stored token at its control plane, and removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import clean, exits
from switchyard.cli.login import kept, replace
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard logout                   the token is refused from now on, and removed from the configuration file
  yard logout --profile lab
  yard logout --forget          only here, where the control plane is gone for good
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--forget", action="store_true", help="remove the token here without asking the control plane")


def run(args: argparse.Namespace) -> int:
    from switchyard.address import config_path
    from switchyard.client import Client
    from switchyard.problem import ApiProblem

    path = config_path()
    table, profiles = kept(path)
    entry = profiles.get(args.profile, {}) if args.profile else table
    url, token = str(entry.get("url", "")), str(entry.get("token", ""))
    if not token:
        raise UsageError(f"{path} holds no token to take back")
    if not args.forget:
        with Client(url, token) as client:
            try:
                client.wire.call("DELETE", "/tokens/current")
            except ApiProblem as problem:
                if problem.status != 401:  # a refused token need not be revoked
                    raise
    del entry["token"]
    replace(path, table, profiles)
    print(f"the token for {clean.line(url)} is {'forgotten' if args.forget else 'taken back'} and removed from {path}")
    return exits.OK
