"""The nursery: a tiny warm process that forks shims, for a fork costs a millisecond and a fresh interpreter twelve.

The agent starts one and writes the folder of each part to it, a line each. Shims belong to nobody: they live on when
the nursery or the agent dies. When the agent's end of the socket closes, the nursery goes too.
"""

import gc
import os
import signal
import socket
import sys

from agents import shim


def serve(descriptor: int) -> None:
    """Fork a shim per line read; a folder whose fork fails is sent back with the reason."""
    agent = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.disable()
    rest = b""
    while content := agent.recv(65536):
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            try:
                child = os.fork()
            except OSError as error:
                agent.sendall(line + b"\0" + os.strerror(error.errno or 0).encode() + b"\n")
                continue
            if child == 0:
                _become_shim(agent, os.fsdecode(line))


def _become_shim(agent: socket.socket, folder: str) -> None:
    status = 1
    try:
        os.setsid()
        agent.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        shim.run(folder)
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must never return into the loop above
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
