"""``yard requeue``: stops running jobs and queues them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import several
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard requeue 42 --reason "a slow link"      it goes on from its newest checkpoint
  yard requeue 42 43
  yard requeue --filter state=RUNNING --filter label=sweep=7 --dry-run
"""

options = several.options


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return several.run(client, args, "requeue")
