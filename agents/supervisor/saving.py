"""Whether a checkpoint is being written. Standard library only, and little of it: the shim imports it."""

import os
import time

from agents.isolation.beneath import OWN, Folder, Rights
from agents.isolation.prctl import PDEATHSIG, prctl
from agents.supervisor import procfs
from agents.supervisor.lean import signal

# A writer that pauses longer than this between two writes counts as done, or as hung.
QUIET_S = 2.0
LOOK_EVERY_S = 0.25
# In a part's run folder: which folder its checkpoints go to.
WATCHED = "watch.json"
_MAX_DEPTH = 12
_MAX_FILES = 50_000


class Saving:
    """Whether files of a folder are being written. Made when a stage is asked to stop, asked when its grace is over.

    A process of its own looks, for the folder may be on a disk of others that keeps whoever asks it waiting for ever;
    who hears nothing of it takes nothing for being written. Only changes seen between two looks count, so nobody's
    clock is compared with anybody's.
    """

    def __init__(self, folder: str, rights: Rights = OWN) -> None:
        self.pid = 0
        self._changed_at: float | None = None
        self._news, writer = os.pipe()
        os.set_blocking(self._news, False)
        try:
            self.pid = os.fork() if folder else 0
        except OSError:
            folder = ""
        if folder and self.pid == 0:
            _tell_of_changes(folder, rights, writer)
        os.close(writer)

    def is_under_way(self) -> bool:
        """True while the folder goes on changing, and for QUIET_S after the last change that was seen."""
        now = time.monotonic()
        try:
            if os.read(self._news, 65536):
                self._changed_at = now
        except BlockingIOError:
            pass
        return self._changed_at is not None and now - self._changed_at < QUIET_S

    def close(self) -> None:
        """Look no longer. Who looks is reaped by whoever made this, once the disk lets it go."""
        os.close(self._news)
        if self.pid:
            procfs.send(self.pid, signal.SIGKILL)


def _tell_of_changes(folder: str, rights: Rights, writer: int) -> None:
    """In the forked child: write a byte for every look that finds the folder changed. Never returns."""
    try:
        prctl(PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        seen = signature(folder, rights)
        while True:
            time.sleep(LOOK_EVERY_S)
            before, seen = seen, signature(folder, rights)
            if seen != before:
                os.write(writer, b".")
    except BaseException:  # noqa: BLE001 - a forked child must never return into the shim's code
        pass
    finally:
        os._exit(0)


def signature(folder: str, rights: Rights = OWN) -> tuple[int, int, int]:
    """How many files there are below a folder, their bytes together, and when the newest was written. Follows no link.

    Looks at 50,000 files at most, twelve folders deep; zeros where there is no folder.
    """
    count = size = newest_ns = 0
    if not folder:
        return count, size, newest_ns
    try:
        with Folder(folder, rights) as opened:
            for _, status in opened.walk(depth=_MAX_DEPTH, most=_MAX_FILES, careful=False):
                count += 1
                size += status.st_size
                newest_ns = max(newest_ns, status.st_mtime_ns)
                if count >= _MAX_FILES:
                    break
    except OSError:
        pass
    return count, size, newest_ns
