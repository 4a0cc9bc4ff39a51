"""``yard cp``: copies files into a running job, or out of it, as a tar stream through a command inside the stage."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from switchyard.cli import clean, exits, units
from switchyard.cli.connection import connect
from switchyard.cli.sizes import size_bytes

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard cp 42:out/model.pt .                    a file, from the folder in which its command started
  yard cp 42:/tmp/trace traces --stage train --rank 3
  yard cp patch.py 42:src/                     into a folder that is there
"""

_PLACE: Final = re.compile(r"#?(\d+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}):(.*)", re.DOTALL)
_MOST: Final = 64 << 30


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="JOB:PATH or a path here")
    parser.add_argument("target", metavar="TO", help="the other one; a folder that is there gets it inside")
    parser.add_argument("--stage", default="", help="the stage to copy from or to, where several run")
    parser.add_argument("--rank", type=int, default=0, help="its rank: which node, where it runs on several")
    parser.add_argument("--most", type=size_bytes, default=_MOST, metavar="SIZE", help="take no more than this (64GiB)")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    source, target = _PLACE.fullmatch(args.source), _PLACE.fullmatch(args.target)
    if (source is None) == (target is None):
        print(
            "error: one of the two is JOB:PATH, the other a path here (usage)\n  hint: ./42:x is a path here",
            file=sys.stderr,
        )
        return exits.USAGE
    ask: dict[str, Any] = {"stage": args.stage, "rank": args.rank, "reason": args.reason}
    with connect(args) as client:
        if source is not None:
            copied = client.jobs.copy_from(source[1], source[2], args.target, most_bytes=args.most, **ask)
        else:
            assert target is not None
            copied = client.jobs.copy_to(target[1], args.source, target[2], **ask)
    for text in copied.told:
        print(f"left out: {clean.line(text)}", file=sys.stderr)
    if copied.left_out > len(copied.told):
        print(f"left out: {copied.left_out - len(copied.told)} more", file=sys.stderr)
    what = "file" if copied.files == 1 else "files"
    print(f"{copied.files} {what}, {units.size(copied.size_bytes)}", file=sys.stderr)
    return exits.FAILURE if copied.left_out else exits.OK
