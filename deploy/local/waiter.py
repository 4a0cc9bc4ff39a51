"""Waits in the keeper for timeouts, children, short commands, and always for the request to stop."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time

BURIAL_S = 20.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop(Exception):
    """The launcher, or a signal, requests the end."""


class Waiter:
    """Waits for the launcher (whose end closes standard input), signals, and the output of short commands.

    One per process, in its main thread. Signals never interrupt: they are handled while :meth:`wait` waits.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, self._read_launcher)
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._read_signals)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def close(self) -> None:
        """Ignore further requests to stop."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _read_launcher(self) -> None:
        if not os.read(0, 512):
            raise Stop

    def _read_signals(self) -> None:
        if set(os.read(self._wake, 512)) & set(STOP_SIGNALS):
            raise Stop

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something happens or ``timeout_s`` has passed. Raises :class:`Stop` if the end is requested."""
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def wait_for(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Wait for a short command, which leads its own process group; return its status and output.

        Raises :class:`Stop`; the command and its processes have ended then.
        """
        assert process.stdout is not None
        output, chunks = process.stdout.fileno(), list[bytes]()

        def collect() -> None:
            chunks.append(os.read(output, 65536))
            if not chunks[-1]:
                self._selector.unregister(output)

        self._selector.register(output, selectors.EVENT_READ, collect)
        try:
            while output in self._selector.get_map() or process.poll() is None:
                self.wait(0.2)
        finally:
            if output in self._selector.get_map():
                self._selector.unregister(output)
            _end(process)
        return process.returncode, b"".join(chunks).decode(errors="replace")


def _reap_group(group: int) -> None:
    """Wait until no process of a group is left; one that its leader forked may still be writing."""
    deadline = time.monotonic() + BURIAL_S
    while time.monotonic() < deadline:
        try:
            # An orphan of the group may have become a child of this process.
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a short command with its processes."""
    if process.poll() is None:
        for number, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, None)):
            try:
                os.killpg(process.pid, number)
                process.wait(patience_s)
                break
            except ProcessLookupError:
                process.wait()
                break
            except subprocess.TimeoutExpired:
                continue
        _reap_group(process.pid)
    if process.stdout is not None:
        process.stdout.close()
