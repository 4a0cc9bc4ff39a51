"""Whether a checkpoint is being written. Standard library only, and little of it: the shim imports it."""

import time

from agents.isolation.beneath import OWN, Folder, Rights

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

    def __init__(self, folder: str, rights: Rights = OWN) -> None:
        self.folder = folder
        self.rights = rights
        self._seen = signature(folder, rights)
        self._changed_at: float | None = None

    def is_under_way(self) -> bool:
        """True while the folder goes on changing, and for QUIET_S after the last change that was seen."""
        seen, now = signature(self.folder, self.rights), time.monotonic()
        if seen != self._seen:
            self._seen, self._changed_at = seen, now
        return self._changed_at is not None and now - self._changed_at < QUIET_S


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
