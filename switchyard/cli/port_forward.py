"""``yard port-forward``: makes a port of this machine lead to a port of a running job."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard port-forward 17 8888               http://127.0.0.1:8888 is the notebook of job 17
  yard port-forward 17 9000:8888          the same at port 9000 here; :8888 takes any free port
  yard port-forward 42 6006 --stage train --rank 3 --reason "its TensorBoard"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument(
        "ports", nargs="+", type=_ports, metavar="[LOCAL:]REMOTE", help="a port of the stage, after one here"
    )
    parser.add_argument("--stage", default="", help="the stage to reach, where several run")
    parser.add_argument("--rank", type=int, default=0, help="its rank: which node, where it runs on several")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    ask: dict[str, Any] = {"stage": args.stage, "rank": args.rank, "reason": args.reason}
    with connect(args) as client, contextlib.ExitStack() as opened:
        for local, remote in args.ports:
            try:
                there = opened.enter_context(client.jobs.forward(args.job, remote, local_port=local, told=_tell, **ask))
            except OSError as error:
                print(f"error: port {local} of this machine: {error.strerror or error} (failed)", file=sys.stderr)
                return exits.FAILURE
            where = f"port {remote} of {there.opened['stage']} on {there.opened['node']}"
            print(clean.line(f"127.0.0.1:{there.local_port} is {where}"), flush=True)
        print("Ctrl-C ends it", file=sys.stderr, flush=True)
        try:
            there.wait()
        except KeyboardInterrupt:
            return exits.OK
    return exits.OK


def _tell(text: str) -> None:
    print(f"a connection failed: {clean.line(text)}", file=sys.stderr, flush=True)


def _ports(text: str) -> tuple[int, int]:
    """Parse ``LOCAL:REMOTE``; a local port of 0 is any that is free."""
    import argparse

    local, colon, remote = text.rpartition(":")
    words = (local or "0", remote) if colon else (remote, remote)
    if not all(word.isascii() and word.isdigit() and int(word) < 65_536 for word in words) or int(words[1]) == 0:
        raise argparse.ArgumentTypeError(f"{clean.line(text)} is no port; write 8888, 9000:8888 or :8888")
    return int(words[0]), int(words[1])
