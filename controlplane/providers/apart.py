"""Runs a command out of reach of an engine that, to end a job, tells every process below it at once, stages too.

The engine's node gets the text of this file, for any Python 3: standard library only. The command is below a process
of its own, and is told to end (SIGTERM) when this one is, or when this one is gone; this one ends when the command has.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

LOOK_S = 0.5


def keep(words: "list[str]", life: int, over: int) -> int:
    """Run a command until it ends; tell it to once ``life`` is at its end. Tell ``over`` its exit code."""
    process = subprocess.Popen(words)
    is_told = False
    while process.poll() is None:
        if select.select([] if is_told else [life], [], [], LOOK_S)[0]:
            process.terminate()
            is_told = True
    code = process.returncode
    with contextlib.suppress(BrokenPipeError):
        os.write(over, str(code if code >= 0 else 128 - code).encode())
    return 0


def run(words: "list[str]") -> int:
    """Run a command apart, and return its exit code; 1 if nobody knows it."""
    ends, life = os.pipe()
    told, over = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(life)
        os.close(told)
        os._exit(keep(words, ends, over))
    os.close(ends)
    os.close(over)
    left = [life]
    signal.signal(signal.SIGTERM, lambda *_: os.close(left.pop()) if left else None)
    os.wait()
    code = os.read(told, 16)
    return int(code) if code else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
