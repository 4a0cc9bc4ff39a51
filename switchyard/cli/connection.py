"""Opens the client for a command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client


def connect(args: argparse.Namespace) -> Client:
    """Return the client for ``--url``, ``--token`` and ``--profile``, or for the environment and configuration
    files."""
    # Where click and rich are installed httpx loads its own command line with them, a seventh of the time of `yard ps`.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None: an import of it fails

    from switchyard.client import Client

    return Client.from_env(args.url, args.token, profile=args.profile)
