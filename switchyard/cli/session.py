"""Opens the client that a command line asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client


def connect(args: argparse.Namespace) -> Client:
    """The client for ``--url``, ``--token`` and ``--profile``, or for what the environment and the files say."""
    from switchyard.client import Client

    return Client.from_env(args.url, args.token, profile=args.profile)
