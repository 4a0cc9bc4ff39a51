"""One process of the local stack: started under the leash, logged to a file, stopped with all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local import leash
from deploy.local.forked import Forked

LEASH = Path(leash.__file__)
ROOT = Path(__file__).parents[2]

# A longer log is renamed to NAME.log.1 when its service starts.
LOG_LIMIT_BYTES = 8 << 20

# In the form of the leash: "self", "mapped" or "UID:GID".
User = str


def python(*words: str) -> list[str]:
    """Return the command of this Python; its import path has no working folder.

    Our own modules are found by :func:`importing`.
    """
    return [sys.executable, "-P", *words]


def importing(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with this checkout as the only additional import folder."""
    return {**environment, "PYTHONPATH": str(ROOT)}


def leashed(
    command: Sequence[str], *, user: User = "self", nice: int = 0, death_signal: signal.Signals = signal.SIGTERM
) -> list[str]:
    """Return ``command`` so that it runs as ``user``, with ``nice``, and gets ``death_signal`` when the calling process
    ends.

    The kernel ties this to the *thread* that starts the command: start it from one that lives as long as the process.
    """
    return [sys.executable, "-I", "-S", str(LEASH), death_signal.name, user, str(nice), str(os.getpid()), *command]


def open_log(path: Path) -> int:
    """Open the log ``path`` for appending, 0600, and rename a long one. The caller closes the descriptor."""
    try:
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    except FileNotFoundError:
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


@dataclass
class Service:
    """A process that runs as long as the stack does. Its children share its process group.

    One that ``is_forked`` runs a Python module, with the imports of this process: its ``command`` is the module and its
    arguments.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    user: User = "self"
    nice: int = 0
    is_forked: bool = False
    process: subprocess.Popen[bytes] | Forked | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)  # CLOCK_MONOTONIC, seconds
    starts: int = field(default=0, init=False)

    def start(self) -> None:
        """Start the process; returns before it is ready."""
        log = open_log(self.log)
        try:
            self.process = self._forked(log) if self.is_forked else self._spawned(log)
        finally:
            os.close(log)
        self.started_at = time.monotonic()
        self.starts += 1

    def _spawned(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            leashed(self.command, user=self.user, nice=self.nice, death_signal=self.stop_signal),
            env=dict(self.environment),
            cwd="/",  # no job can put anything there
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )

    def _forked(self, log: int) -> Forked:
        title = f"switchyard {self.name} of {self.environment['YARD_HOME']}: {' '.join(self.command)}"
        parent = os.getpid()
        return Forked(
            title,
            self.command,
            self.environment,
            log,
            lambda: leash.tie(self.stop_signal.name, self.user, self.nice, parent),
        )

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def ended(self) -> int | None:
        """Return the exit status (negative: a signal) if the process has ended, else None.

        Its remaining children are killed before the process itself is reaped, because until then its group number
        cannot be reused.
        """
        if self.process is None:
            return None
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.signal_group(signal.SIGKILL)
        return self.process.wait()

    def ask_to_stop(self) -> None:
        """Send the stop signal to the process alone, which handles its children."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(self.stop_signal)

    def signal_group(self, number: signal.Signals) -> None:
        """Send ``number`` to the process and all its children."""
        if self.process is not None and self.process.returncode is None:
            try:
                os.killpg(self.process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # the group has not been made yet, or is gone

    def last_lines(self, count: int = 8) -> str:
        """Return the end of the log, for a message about why the process did not start."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


def stop_all(services: Sequence[Service], patience_s: float) -> list[str]:
    """Stop ``services`` together and return the names of those that had to be killed after ``patience_s``."""
    waiting = [service for service in services if service.process is not None and service.ended() is None]
    for service in waiting:
        service.ask_to_stop()
    deadline = time.monotonic() + patience_s
    while waiting and time.monotonic() < deadline:
        time.sleep(0.01)
        waiting = [service for service in waiting if service.ended() is None]
    for service in waiting:
        service.signal_group(signal.SIGKILL)
        if service.process is not None:
            service.process.wait()
    return [service.name for service in waiting]
