"""Unpacks a bundle into one folder, in a process of its own that has nothing but its user's rights.

A bundle is an archive that a stranger made. Only the headers of :mod:`tarfile` are used; what is written is written
here, so it does not depend on which Python runs the agent:

- every step of a path is opened from the folder that was handed over, following no link;
- symbolic links are made last, so nothing is ever written through one, and each leads to a place inside the folder;
- hard links lead to files of the same bundle; there are no devices, no pipes, no set-id bits;
- entries, bytes and memory are bounded.

Standard library only: it runs without site-packages.
"""

import json
import math
import os
import resource
import sys
import tarfile

from agents.isolation.beneath import FOLDER
from agents.supervisor.command import drop

MOST_ENTRIES = 100_000
MOST_BYTES = 4 << 30
MOST_MEMORY = 1 << 30
MOST_CPU_S = 1800
MAX_DEPTH = 64
_MAX_PATH = 4000
_PIECE = 1 << 20
_MAX_TIME = 1 << 33

Steps = tuple[str, ...]


class UnpackRefused(Exception):
    """The bundle has an entry that is not unpacked; the text names it."""


def steps_of(name: str) -> Steps:
    """Return the steps of a path from the folder; a leading slash is ignored. Raises UnpackRefused for one that leads
    out."""
    found = tuple(step for step in name.split("/") if step not in ("", "."))
    if ".." in found:
        raise UnpackRefused(f"{name[:200]!r} would lie outside of the folder")
    if len(found) > MAX_DEPTH or len(name) > _MAX_PATH:
        raise UnpackRefused(f"{name[:200]!r} is too long or lies more than {MAX_DEPTH} folders deep")
    if any("\0" in step or len(os.fsencode(step)) > 255 for step in found):
        raise UnpackRefused(f"{name[:200]!r} is no name of a file")
    return found


class Unpacking:
    """The folder open at ``top``, and the entries created there so far."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.bytes = 0
        self.files: set[Steps] = set()
        self.links: dict[Steps, str] = {}

    def take(self, archive: tarfile.TarFile) -> None:
        """Unpack every entry. Raises UnpackRefused, or OSError; entries written before stay."""
        for count, entry in enumerate(archive):
            if count >= MOST_ENTRIES:
                raise UnpackRefused(f"it holds more than {MOST_ENTRIES:,} entries")
            self._take(archive, entry)
        for steps, target in self.links.items():
            self._link(steps, target)

    def _take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        steps = steps_of(entry.name)
        if entry.isdir():
            os.close(self._folder(steps, (entry.mode & 0o755) | 0o700))
        elif not steps:
            raise UnpackRefused("an entry that is no folder has no name")
        elif entry.issym():
            self.links[steps] = entry.linkname
        elif entry.islnk():
            self._hard_link(steps, steps_of(entry.linkname))
        elif entry.isreg():
            self._file(archive, entry, steps)
        else:
            raise UnpackRefused(f"{entry.name[:200]!r} is neither a file, a folder nor a link")

    def _folder(self, steps: Steps, mode: int = 0o755) -> int:
        """Return a handle of a folder, which is created if missing, with its parents."""
        here = os.dup(self.top)
        try:
            for step in steps:
                try:
                    os.mkdir(step, mode, dir_fd=here)
                except FileExistsError:
                    pass
                here, above = os.open(step, FOLDER, dir_fd=here), here
                os.close(above)
        except BaseException:
            os.close(here)
            raise
        return here

    def _place(self, steps: Steps) -> int:
        """Return a handle of the folder for an entry; an existing file of the entry's name is replaced."""
        folder = self._folder(steps[:-1])
        try:
            os.unlink(steps[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(folder)
            raise
        self.files.discard(steps)
        return folder

    def _file(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, steps: Steps) -> None:
        self.bytes += entry.size
        if entry.size < 0 or self.bytes > MOST_BYTES:
            raise UnpackRefused(f"it unpacks to more than {MOST_BYTES >> 30} GiB")
        content = archive.extractfile(entry)
        if content is None:
            raise UnpackRefused(f"{entry.name[:200]!r} has no content")
        folder = self._place(steps)
        try:
            file = os.open(steps[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        with content, open(file, "wb") as sink:
            while piece := content.read(_PIECE):
                sink.write(piece)
            sink.flush()
            # Always readable by its owner, never writable by others, never setuid or setgid.
            os.fchmod(file, (entry.mode & 0o755) | 0o600)
            if math.isfinite(entry.mtime) and 0 <= entry.mtime < _MAX_TIME:
                os.utime(file, (entry.mtime, entry.mtime))
        self.files.add(steps)

    def _hard_link(self, steps: Steps, target: Steps) -> None:
        if target not in self.files:
            raise UnpackRefused(f"{'/'.join(steps)[:200]!r} links to what is no file of the bundle before it")
        if target == steps:
            return
        source = self._folder(target[:-1])
        try:
            folder = self._place(steps)
            try:
                os.link(target[-1], steps[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
        finally:
            os.close(source)
        self.files.add(steps)

    def _link(self, steps: Steps, target: str) -> None:
        name = "/".join(steps)[:200]
        if not target or "\0" in target or target.startswith("/") or len(target) > _MAX_PATH:
            raise UnpackRefused(f"{name!r} links to {target[:200]!r}, which is no path from where it lies")
        checked = self._checked(name, steps[:-1], target)
        folder = self._folder(steps[:-1])
        try:
            os.symlink(checked, steps[-1], dir_fd=folder)
        except FileExistsError:
            raise UnpackRefused(f"{name!r} is there twice, once as a link") from None
        finally:
            os.close(folder)

    def _checked(self, name: str, start: Steps, target: str) -> str:
        """Return the target, made of the checked steps. Raises UnpackRefused if the link leads out: it may go up
        through real folders only, never from behind a link."""
        here, beyond_link = list(start), False
        taken = [step for step in target.split("/") if step not in ("", ".")]
        for step in taken:
            if step == "..":
                if beyond_link or not here:
                    raise UnpackRefused(f"{name!r} links to {target[:200]!r}, which leads out of the folder")
                here.pop()
                continue
            here.append(step)
            beyond_link = beyond_link or tuple(here) in self.links
        return "/".join(taken) or "."


def main(folder: int, uid: str, gid: str) -> int:
    """Become the user, read the bundle from standard input and unpack it; errors are printed to standard output as
    JSON."""
    try:
        if uid:
            drop(int(uid), int(gid), [])
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.umask(0o022)
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r:*") as archive:
            Unpacking(folder).take(archive)
    except UnpackRefused as error:
        said = str(error)
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
    except MemoryError:
        said = "its headers need more memory than a bundle may take"
    except Exception as error:  # noqa: BLE001 - whatever a broken archive makes of its reader is the archive's fault
        said = f"it is no archive that can be read: {error}" if str(error) else "it is no archive that can be read"
    else:
        return 0
    print(json.dumps(said[:500]))
    return 1
