"""Whether a checkpoint is being written. Standard library only, and little of it: the shim imports it."""

import os
import time

from agents.isolation.beneath import OWN, FileRights, Folder
from agents.supervisor.lean import signal

# A writer that pauses longer than this between two writes counts as done, or as hung.
QUIET_S = 2.0
# In a part's run folder: which folder its checkpoints go to.
WATCHED = "watch.json"
_MAX_DEPTH = 12
_MAX_FILES = 50_000


class Saving:
    """Detects whether files of a folder are being written. Created when a stage is asked to stop, used when its grace
    is over.

    Only changes between two scans count, so clocks are not compared. A child process scans and is not waited for: a
    disk that does not answer delays neither a stop nor the end of a lease.
    """

    def __init__(self, folder: str, rights: FileRights = OWN) -> None:
        self.folder = folder
        self.rights = rights
        self._seen: bytes | None = None
        self._changed_at: float | None = None
        self._answer: int | None = None
        self.looker = 0
        self._began_at = 0.0
        self._look()

    def is_under_way(self) -> bool:
        """Whether the folder is changing, until QUIET_S after the last observed change.

        Also while a scan is not finished, for QUIET_S: after that the folder cannot be written either.
        """
        if not self.folder:
            return False
        is_first = self._seen is None
        if self._answer is None or (self._take() and is_first):
            self._look()
        if self._answer is not None:
            return time.monotonic() - self._began_at < QUIET_S
        return self._changed_at is not None and time.monotonic() - self._changed_at < QUIET_S

    def close(self) -> None:
        """Stop scanning."""
        if self._answer is not None and not self._take():
            os.close(self._answer)
            os.kill(self.looker, signal.SIGKILL)

    def _look(self) -> None:
        """Start a child that scans. If the host starts no more processes, no change is observed."""
        if not self.folder:
            return
        reader, writer = os.pipe()
        try:
            self.looker = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            return
        if self.looker == 0:
            try:
                os.write(writer, b"%d %d %d" % signature(self.folder, self.rights))
            finally:
                os._exit(0)
        os.close(writer)
        os.set_blocking(reader, False)
        self._answer, self._began_at = reader, time.monotonic()

    def _take(self) -> bool:
        """Take the result of the child, if it is there."""
        assert self._answer is not None, "somebody looks"
        try:
            seen = os.read(self._answer, 200)
        except BlockingIOError:
            return False
        os.close(self._answer)
        self._answer = None
        if self._seen and seen and seen != self._seen:
            self._changed_at = time.monotonic()
        self._seen = seen
        return True


def signature(folder: str, rights: FileRights = OWN) -> tuple[int, int, int]:
    """Return how many files there are below a folder, their total bytes, and when the newest was written. Follows no
    link.

    Scans 50,000 files at most, twelve folders deep; zeros if there is no folder.
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
