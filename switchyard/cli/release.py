"""``yard release``: releases held jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import several
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard release 42
  yard release --filter state=HELD --filter user=me      all that you hold
  yard release 42 --reason "data is there"
"""

options = several.options


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return several.run(client, args, "release")
