"""``yard hold``: holds jobs, so that they do not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import several
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard hold 42 --reason "waits for the new data set"
  yard hold --filter state=PENDING --filter user=me      all of yours that wait
  yard hold 42 && yard show 42
"""

options = several.options


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return several.run(client, args, "hold")
