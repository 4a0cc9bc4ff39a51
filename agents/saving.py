"""Whether a checkpoint is being written. Standard library only, and little of it: the shim imports it."""

import os
import stat
import time

# A writer that pauses longer than this between two writes counts as done, or as hung.
QUIET_S = 2.0
# In a part's run folder: which folder its checkpoints go to.
WATCHED = "watch.json"
_MAX_DEPTH = 12
_MAX_FILES = 50_000


class Saving:
    """Whether files of a folder are being written. Made when a stage is asked to stop, asked when its grace is over.

    Only changes seen between two looks count, so nobody's clock is compared with anybody's.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._seen = signature(folder)
        self._changed_at: float | None = None

    def is_under_way(self) -> bool:
        """True while the folder goes on changing, and for QUIET_S after the last change that was seen."""
        seen, now = signature(self.folder), time.monotonic()
        if seen != self._seen:
            self._seen, self._changed_at = seen, now
        return self._changed_at is not None and now - self._changed_at < QUIET_S


def signature(folder: str) -> tuple[int, int, int]:
    """How many files there are below a folder, their bytes together, and when the newest was written. Follows no link.

    Looks at 50,000 files at most, twelve folders deep; zeros where there is no folder.
    """
    count = size = newest_ns = 0
    rest = [(folder, 0)] if folder else []
    while rest and count < _MAX_FILES:
        path, depth = rest.pop()
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH:
                        rest.append((entry.path, depth + 1))
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                count += 1
                size += status.st_size
                newest_ns = max(newest_ns, status.st_mtime_ns)
    return count, size, newest_ns
