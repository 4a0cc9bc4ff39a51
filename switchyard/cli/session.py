"""Opens the client for a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client


def connect(args: argparse.Namespace) -> Client:
    """Return the client for ``--url``, ``--token`` and ``--profile``, or for the environment and configuration
    files."""
    from switchyard.client import Client

    return Client.from_env(args.url, args.token, profile=args.profile)
