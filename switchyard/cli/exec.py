"""``yard exec``: runs a command inside a running job, with local input and output."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from switchyard.cli import exits
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse

    from switchyard.entry import Entry

TAKES_COMMAND = True
EXAMPLES = """
  yard exec 17 -- nvidia-smi                      what the job's devices do now
  yard exec -it 17                                a shell beside the job's command
  yard exec 17 --stage train --rank 3 --reason "hangs in all-reduce" -- py-spy dump --pid 4711
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("-i", "--stdin", action="store_true", help="pass on what is typed, or piped in")
    parser.add_argument("-t", "--tty", action="store_true", help="give the command a terminal")
    parser.add_argument("--stage", default="", help="the stage to enter, where several run")
    parser.add_argument("--rank", type=int, default=0, help="its rank: which node, where it runs on several")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    if not args.command and not args.stdin:
        print("error: there is no command (usage)\n  hint: give one after --, or -it for a shell", file=sys.stderr)
        return exits.USAGE
    if args.tty and args.stdin and not sys.stdin.isatty():
        print("error: what is piped in is no terminal (usage)\n  hint: leave out -t", file=sys.stderr)
        return exits.USAGE
    size = shutil.get_terminal_size()
    ask = {"stage": args.stage, "rank": args.rank, "reason": args.reason, "stdin": args.stdin, "tty": args.tty}
    if args.tty:
        ask |= {"rows": size.lines, "columns": size.columns, "term": os.environ.get("TERM", "")[:64]}
    with connect(args) as client, client.jobs.enter(args.job, args.command, **ask) as inside:
        with _raw() if args.tty and args.stdin else contextlib.nullcontext():
            if args.tty:
                _follow_size(inside)
            if args.stdin:
                threading.Thread(target=_type, args=(inside,), daemon=True).start()
            _show(inside)
        return inside.code & 0xFF


def _type(inside: Entry) -> None:
    while piece := os.read(sys.stdin.fileno(), 16_384):
        inside.send(piece)
    inside.finish()


def _show(inside: Entry) -> None:
    """Show the command's output. Ctrl-C is sent to the command if the terminal does not do so itself."""
    heard: queue.Queue[tuple[int, bytes] | BaseException | None] = queue.Queue(maxsize=16)

    def listen() -> None:
        try:
            for each in inside:
                heard.put(each)
            heard.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it can be answered
            heard.put(error)

    threading.Thread(target=listen, daemon=True).start()
    interrupted = False
    while True:
        try:
            each = heard.get()
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            inside.say(signal="SIGINT")
            continue
        if each is None:
            return
        if isinstance(each, BaseException):
            raise each
        _write(*each)


def _write(stream: int, content: bytes) -> None:
    file = sys.stderr if stream == 2 else sys.stdout
    file.flush()
    view = memoryview(content)
    while view:
        view = view[os.write(file.fileno(), view) :]


def _follow_size(inside: Entry) -> None:
    """Send the size of the terminal whenever it changes, from a thread of its own, because a signal comes at any
    moment."""
    changes: queue.SimpleQueue[None] = queue.SimpleQueue()
    signal.signal(signal.SIGWINCH, lambda *_: changes.put(None))

    def tell() -> None:
        while True:
            changes.get()
            size = shutil.get_terminal_size()
            inside.say(rows=size.lines, columns=size.columns)

    threading.Thread(target=tell, daemon=True).start()


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Set this terminal to raw mode, and restore it afterwards."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    # Typed-ahead input is for the command too.
    tty.setraw(keyboard, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
