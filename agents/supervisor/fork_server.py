"""The fork server: a small warm process that gives each part a shim, an idle one if there is one, else a new fork.

Starting a fresh interpreter costs 12 ms of CPU time. A fork costs 5 ms, mostly for copying the pages that the child
touches first; an idle shim has made these copies already and costs 1 ms. A shim serves one part at a time, so a part
that harms its shim harms only itself.

The agent starts one fork server and writes the folder of each part to it, one per line. A shim with a part outlives
fork server and agent, and ends with its part. When the agent closes its end of the socket, the fork server ends, and
with it every idle shim.
"""

import gc
import os
import resource
import select
import sys
import time

from agents.supervisor.lean import signal
from agents.supervisor.shim import Shim

IDLE_S = 10.0
"""A shim that had nothing to do for so long is let go, but for ``SPARE`` of them."""
SPARE = 2
PARTS_EACH = 500
"""A shim goes after so many parts, whatever its memory has become by then."""
_PATH_MAX = 4096


class ForkServer:
    """The shims that were forked here, and which of them are idle."""

    def __init__(self, agent: int) -> None:
        self.agent = agent
        self.poll = select.poll()
        self.idle_reader, self.idle_writer = os.pipe()
        self.orders: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        self.idle: list[tuple[int, float]] = []
        for source in (agent, self.idle_reader):
            self.poll.register(source, select.POLLIN)

    def serve(self) -> None:
        """Start a shim for every folder read until the agent closes the socket. If a fork fails, reply with the
        reason."""
        rest = b""
        while True:
            # In this order, so that a process that just became idle may take the order that just arrived.
            news = self.poll.poll(IDLE_S * 1000 if len(self.idle) > SPARE else None)
            for source, event in sorted(news, key=lambda found: found[0] == self.agent):
                if source == self.idle_reader:
                    self._note_idle()
                elif source == self.agent:
                    content = os.read(self.agent, 65536)
                    if not content:
                        return
                    *folders, rest = (rest + content).split(b"\n")
                    for folder in folders:
                        self._give(folder)
                elif event:
                    self._forget(source)
            self._let_go()

    def _note_idle(self) -> None:
        now = time.monotonic()
        for word in os.read(self.idle_reader, 65536).split():
            pid = int(word)
            if pid in self.orders:
                self.idle.append((pid, now))

    def _give(self, folder: bytes) -> None:
        while self.idle:
            pid, _ = self.idle.pop()
            try:
                os.write(self.orders[pid], folder)
            except (OSError, KeyError):
                continue
            return
        try:
            self._fork(folder)
        except OSError as error:
            os.write(self.agent, folder + b"\0" + os.strerror(error.errno or 0).encode() + b"\n")

    def _fork(self, folder: bytes) -> None:
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            # A shim that held these open would hide from others that the agent, the fork server or a shim is gone.
            for descriptor in (self.agent, self.idle_reader, writer, *self.pids):
                os.close(descriptor)
            _become_shim(folder, reader, self.idle_writer)
        os.close(reader)
        self.orders[pid], self.pids[writer] = writer, pid
        # Watches only for the end of the reader, and with it of the shim.
        self.poll.register(writer, 0)

    def _forget(self, writer: int) -> None:
        pid = self.pids.pop(writer)
        del self.orders[pid]
        self.idle = [one for one in self.idle if one[0] != pid]
        self.poll.unregister(writer)
        os.close(writer)

    def _let_go(self) -> None:
        """Close the connections of the shims that have been idle longest; the others stay for the next parts."""
        before = time.monotonic() - IDLE_S
        while len(self.idle) > SPARE and self.idle[0][1] < before:
            self._forget(self.orders[self.idle[0][0]])


def serve(agent: int) -> None:
    """Run as the fork server of the agent at the other end of this socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    shape_for_commands()
    gc.collect()
    gc.freeze()
    gc.disable()
    ForkServer(agent).serve()


def shape_for_commands() -> None:
    """Set once what every command inherits: no core dumps, the highest allowed number of open files, no input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0, inheritable=True)
    os.close(nothing)


def _become_shim(folder: bytes, orders: int, idle: int) -> None:
    """In the forked child: serve one part after the other. Never returns."""
    status = 1
    try:
        os.setsid()
        shim = Shim()
        for _ in range(PARTS_EACH):
            shim.serve(os.fsdecode(folder))
            # One that has a child left, which a disk may hold for ever, must take it for no other part's.
            folder = b"" if _has_children() else _next(orders, idle)
            if not folder:
                break
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must never return into the fork server's loop
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _has_children() -> bool:
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
    except ChildProcessError:
        return False


def _next(orders: int, idle: int) -> bytes:
    """Ask for another part and wait for it; return an empty text if the fork server ended or has enough idle shims."""
    try:
        os.write(idle, b"%d\n" % os.getpid())
    except BrokenPipeError:
        return b""
    return os.read(orders, _PATH_MAX)
