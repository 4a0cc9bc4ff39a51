"""``yard port-forward``: makes ports of this machine lead to ports of a running job.

With several ports each that ends is told, and the others go on. The command ends with the last, and with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits
from switchyard.cli.connection import connect
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.forward import Forward

EXAMPLES = """
  yard port-forward 17 8888               http://127.0.0.1:8888 is the notebook of job 17
  ssh -o ProxyCommand="yard port-forward --stdio 17 2222" node    an sshd that the job started
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
    parser.add_argument("--stdio", action="store_true", help="join one connection to this command's input and output")


def run(args: argparse.Namespace) -> int:
    ask: dict[str, Any] = {"stage": args.stage, "rank": args.rank, "reason": args.reason}
    if args.stdio:
        return _join(args, ask)
    held: list[Forward] = []
    with connect(args) as client, contextlib.ExitStack() as opened:
        for local, remote in args.ports:
            there = client.jobs.forward(args.job, remote, local_port=local, told=_teller(remote), **ask)
            try:
                held.append(opened.enter_context(there))
            except OSError as error:
                print(f"error: port {local} of this machine: {error.strerror or error} (failed)", file=sys.stderr)
                return exits.FAILURE
            where = f"port {remote} of {there.opened['stage']} on {there.opened['node']}"
            print(clean.line(f"127.0.0.1:{there.local_port} is {where}"), flush=True)
        print("Ctrl-C ends it", file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            _wait(held)
    return exits.OK


def _join(args: argparse.Namespace, ask: dict[str, Any]) -> int:
    """Pass this command's input to one connection, and what comes back to its output, until that ends."""
    if len(args.ports) != 1:
        raise UsageError("--stdio joins one port")
    ((_local, remote),) = args.ports
    with (
        connect(args) as client,
        client.jobs.forward(args.job, remote, told=_teller(remote), **ask) as there,
        socket.create_connection(("127.0.0.1", there.local_port)) as link,
    ):
        threading.Thread(target=_type, args=(link,), daemon=True).start()
        while piece := link.recv(65_536):
            view = memoryview(piece)
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]
    return exits.OK


def _type(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := os.read(sys.stdin.fileno(), 65_536):
            link.sendall(piece)
        link.shutdown(socket.SHUT_WR)


def _wait(held: list[Forward]) -> None:
    """Tell of each port that ends, and why, and go on with the others; raise why the last one ended."""
    ends: SimpleQueue[tuple[Forward, Exception | None]] = SimpleQueue()

    def watch(there: Forward) -> None:
        try:
            there.wait()
        except Exception as error:  # noqa: BLE001 - told by who waits
            ends.put((there, error))
        else:
            ends.put((there, None))

    for there in held:
        threading.Thread(target=watch, args=(there,), daemon=True).start()
    for left in reversed(range(len(held))):
        there, error = ends.get()
        there.close()
        if error is not None and not left:
            raise error
        text = f"port {there.port} is not forwarded any more: {error or 'the session ended'}"
        print(clean.line(text), file=sys.stderr, flush=True)


def _teller(port: int) -> Callable[[str], None]:
    def tell(text: str) -> None:
        print(f"a connection to port {port} failed: {clean.line(text)}", file=sys.stderr, flush=True)

    return tell


def _ports(text: str) -> tuple[int, int]:
    """Parse ``LOCAL:REMOTE``; a local port of 0 is any that is free."""
    import argparse

    local, colon, remote = text.rpartition(":")
    words = (local or "0", remote) if colon else (remote, remote)
    if not all(word.isascii() and word.isdigit() and int(word) < 65_536 for word in words) or int(words[1]) == 0:
        raise argparse.ArgumentTypeError(f"{clean.line(text)} is no port; write 8888, 9000:8888 or :8888")
    return int(words[0]), int(words[1])
