"""The session process: runs one interactive command inside a running part, between the agent and that command.

The part's shim starts it when the agent asks, so it belongs to the part: it is counted, limited and ended with it. It
gets its order from the agent over a Unix socket in the part's folder, where only the agent can write, and passes bytes
both ways. Whatever the command leaves running ends with the session, and the session ends with that socket.

A message on the socket is a kind, a length and as many bytes. Standard library only: it is a process of its own, and
its memory counts as the part's.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import termios

from agents.ends import clause, say
from agents.isolation.prctl import CHILD_SUBREAPER, DUMPABLE, PDEATHSIG, prctl
from agents.supervisor import procfs
from agents.supervisor.command import refused, run_command
from agents.supervisor.lean import dumps, loads, signal
from agents.supervisor.verdict import exit_of

STDIN, STDOUT, STDERR, WORD, TAKEN, END, ORDER = range(7)
HEAD = struct.Struct("!BI")
MOST_BYTES = 1 << 20
_PIECE = 16_384
_FULL = 65_536
_LAST_WORDS_S = 1.0
_HANG_UP_S = 2.0


class SessionProcess:
    """One interactive command, and its user at the other end of ``link``."""

    def __init__(self, link: socket.socket, order: dict) -> None:  # type: ignore[type-arg]
        self.link = link
        self.order = order
        self.heard = b""
        self.unsent = bytearray()
        self.unwritten = bytearray()
        self.is_input_over = False
        self.sources: dict[int, int] = {}
        self.input: int | None = None
        self.terminal: int | None = None
        self.main = 0
        self.status: int | None = None
        self.is_alone = False
        self.wake, self.wake_writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_writer, False)

    # -- the command

    def begin(self) -> str:
        """Start the command; return a sentence if that is not possible."""
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        # Caught, not ignored: the command would inherit ignored signals.
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, _do_nothing)
        given, out, err, mine = self._terminal() if self.order.get("tty") else self._pipes()
        word_reader, word_writer = os.pipe()
        me = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            _prefer_as_oom_victim()
            run_command(self.order, 0.0, out, err, word_writer, me, given)
        for descriptor in {given, out, err, word_writer}:
            os.close(descriptor)
        told = b""
        while piece := os.read(word_reader, 4096):
            told += piece
        os.close(word_reader)
        for descriptor in mine:
            os.set_blocking(descriptor, False)
        return say((refused(told),)) if told else ""

    def _terminal(self) -> "tuple[int, int, int, list[int]]":
        self.terminal, theirs = os.openpty()
        self.resize(self.order.get("rows", 24), self.order.get("columns", 80))
        if self.order.get("uid") is not None:
            # Programs open the terminal again by its name, which an agent without the right to change owners cannot
            # allow.
            try:
                os.fchown(theirs, self.order["uid"], -1)
            except PermissionError:
                pass
        os.fchmod(theirs, 0o620)
        self.sources[self.terminal] = STDOUT
        self.input = os.dup(self.terminal)
        return theirs, theirs, theirs, [self.terminal, self.input]

    def _pipes(self) -> "tuple[int, int, int, list[int]]":
        out_reader, out = os.pipe()
        err_reader, err = os.pipe()
        self.sources = {out_reader: STDOUT, err_reader: STDERR}
        if not self.order.get("stdin"):
            return os.open(os.devnull, os.O_RDONLY), out, err, [out_reader, err_reader]
        given, self.input = os.pipe()
        return given, out, err, [out_reader, err_reader, self.input]

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the command's terminal; the kernel signals the command."""
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- to and fro

    def send(self, kind: int, content: bytes) -> None:
        self.unsent += HEAD.pack(kind, len(content)) + content

    def pump(self) -> None:
        """Pass bytes both ways until the command has ended and its output is sent, or the agent closed the socket."""
        until = None
        while not self.is_alone:
            self._reap()
            if self.status is not None and until is None:
                until = procfs.boottime() + _LAST_WORDS_S
            if until is not None and (not self.sources or procfs.boottime() > until):
                return
            for descriptor, event in self._poll(100 if until else None):
                if descriptor == self.wake:
                    _emptied(self.wake)
                elif descriptor == self.link.fileno():
                    self._exchange(event)
                    for kind, content in self._messages():
                        self._obey(kind, content)
                elif descriptor == self.input:
                    self._give()
                else:
                    self._take(descriptor)

    def _poll(self, patience_ms: int | None) -> "list[tuple[int, int]]":
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        poll.register(self.link, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        if len(self.unsent) < _FULL:
            for source in self.sources:
                poll.register(source, select.POLLIN)
        if self.input is not None and (self.unwritten or self.is_input_over):
            poll.register(self.input, select.POLLOUT)
        return poll.poll(patience_ms)

    def _take(self, source: int) -> None:
        try:
            piece = os.read(source, _PIECE)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose last user is gone
            piece = b""
        if piece:
            self.send(self.sources[source], piece)
            return
        del self.sources[source]
        if source != self.terminal:
            os.close(source)

    def _give(self) -> None:
        assert self.input is not None, "it is asked for only while it is open"
        if self.unwritten:
            try:
                wrote = os.write(self.input, self.unwritten[:_PIECE])
            except BlockingIOError:
                return
            except OSError:  # the command closed its input; further input is dropped
                wrote = len(self.unwritten)
                self.is_input_over = True
            del self.unwritten[:wrote]
            self.send(TAKEN, b"%d" % wrote)
        if self.is_input_over and not self.unwritten:
            os.close(self.input)
            self.input = None

    def _exchange(self, event: int) -> None:
        if event & select.POLLOUT:
            try:
                del self.unsent[: self.link.send(self.unsent[:_FULL])]
            except BlockingIOError:
                pass
            except OSError:
                self.is_alone = True
        if event & ~select.POLLOUT:
            try:
                piece = self.link.recv(_FULL)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            self.heard += piece
            self.is_alone = self.is_alone or not piece

    def _messages(self) -> "list[tuple[int, bytes]]":
        found = []
        while len(self.heard) >= HEAD.size:
            kind, length = HEAD.unpack_from(self.heard)
            if len(self.heard) < HEAD.size + length:
                break
            found.append((kind, self.heard[HEAD.size : HEAD.size + length]))
            self.heard = self.heard[HEAD.size + length :]
        return found

    def _obey(self, kind: int, content: bytes) -> None:
        if kind == STDIN and self.input is not None:
            if content:
                self.unwritten += content
            elif self.terminal is not None:
                self.unwritten += b"\x04"
            else:
                self.is_input_over = True
        elif kind == STDIN:
            self.send(TAKEN, b"%d" % len(content))
        elif kind == WORD:
            told = loads(content)
            if told.get("rows") and told.get("columns"):
                self.resize(told["rows"], told["columns"])
            if number := getattr(signal, str(told.get("signal") or ""), None):
                self._signal(number)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.main, number)
        except OSError:
            pass

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status

    # -- ending

    def end(self, why: str = "") -> None:
        """End all processes of the session, and send how the command ended, or ``why`` it did not start."""
        if self.status is None:
            self._signal(signal.SIGHUP)
            self._signal(signal.SIGCONT)
            until = procfs.boottime() + _HANG_UP_S
            while self.status is None and procfs.boottime() < until:
                select.select([self.wake], [], [], 0.05)
                _emptied(self.wake)
                self._reap()
        procfs.end_all(self._family)
        self._reap()
        code, number = exit_of(self.status) if self.status is not None else (None, signal.SIGKILL)
        self.send(END, dumps({"error": why} if why else {"code": code, "signal": number}).encode())
        # However slowly it is read, until the agent closes the socket: closed here with input unread, it would take
        # away what the agent has not read yet.
        while not self.is_alone:
            poll = select.poll()
            poll.register(self.link, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            for _, event in poll.poll():
                self._exchange(event)
            self.heard = b""

    def _family(self) -> "list[int]":
        """Return all processes that the command started; those in a container are no children of ours, but have the
        mark."""
        self._reap()
        found = set(procfs.descendants(os.getpid())) | set(procfs.marked(self.order["session"], procfs.SESSION_MARK))
        return [pid for pid in found - {os.getpid()} if procfs.start_time(pid) is not None]


def _do_nothing(*_: object) -> None:
    """Signal handler without effect: that a signal came is read from the wake pipe."""


def _prefer_as_oom_victim() -> None:
    """Make the kernel choose the interactive command first when the host runs out of memory, like the part's own."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _emptied(pipe: int) -> None:
    try:
        while os.read(pipe, 512):
            pass
    except BlockingIOError:
        pass


def _received(link: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        piece = link.recv(length - len(content))
        if not piece:
            raise ConnectionError("the agent hung up")
        content += piece
    return content


def address(folder: int, name: str) -> str:
    """Return the address of a socket in an open folder; the plain path may be too long."""
    return f"/proc/self/fd/{folder}/{name}"


def run(folder: str, name: str, shim: int) -> int:
    """Serve one session of the part whose folder it is."""
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:
        return 1
    prctl(CHILD_SUBREAPER, 1)
    prctl(DUMPABLE, 0)
    os.setsid()
    link = socket.socket(socket.AF_UNIX)
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    link.connect(address(here, name))
    os.close(here)
    kind, length = HEAD.unpack(_received(link, HEAD.size))
    if kind != ORDER or length > MOST_BYTES * 16:
        return 1
    session = SessionProcess(link, loads(_received(link, length)))
    link.setblocking(False)
    try:
        why = session.begin()
    except OSError as error:
        why = say((clause("HostFull", error=error.strerror or str(error)),))
    if why:
        session.status = 0
    else:
        session.pump()
    session.end(why)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
