"""Passes the secret fields of a part's order to its shim through a file in memory, which the shim reads and removes.

The agent writes it and the shim reads it once, milliseconds later, unless the agent ends just then. It is in a folder
of the agent's own on a file system in memory (tmpfs), which stages of other users cannot enter. Standard library only:
the shim imports it.
"""

import errno
import os
import stat
from zlib import crc32

from agents.isolation.beneath import FOLDER
from agents.isolation.beneath import remove as remove_all
from agents.supervisor.record import read_whole, write_all, write_whole

# The subfolder of a part's run folder for secrets that it gets as files.
GIVEN = "secrets"
IN_MEMORY = ("tmpfs", "ramfs")
_TRIES = 8


def base() -> str:
    """Return the folder in memory that a process of this user may write to; empty if this host has none."""
    for path in ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR", "")):
        if path and os.access(path, os.W_OK | os.X_OK) and is_in_memory(path):
            return path
    return ""


def is_in_memory(path: str, mounts: str = "/proc/self/mounts") -> bool:
    """Return whether files written there are kept in memory only."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            found = [line.split(" ")[1:3] for line in file]
    except OSError:
        return False
    where = os.path.realpath(path)
    over = [(place, kind) for place, kind in found if (where + "/").startswith(place.rstrip("/") + "/")]
    # The longest mount point, and of equal ones the last, is the effective one.
    return bool(over) and max(reversed(over), key=lambda one: len(one[0]))[1] in IN_MEMORY


def folder(state: str) -> str:
    """Return the secret folder of the agent with this state folder, created if missing; without a tmpfs it is in the
    state folder.

    If another user of the host has taken the name, another name is used.
    """
    top, name = base() or state, f"switchyard-{os.geteuid()}-{crc32(os.fsencode(os.path.abspath(state))):08x}"
    for number in range(_TRIES):
        path = f"{top}/{name}{f'-{number}' if number else ''}"
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        there = os.lstat(path)
        if stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid():
            os.chmod(path, 0o700)
            return path
    raise OSError(errno.EEXIST, "others have taken every name for it", path)


def leave(state: str, name: str, content: "dict | str") -> str:  # type: ignore[type-arg]
    """Write an object, or a text, for the process that starts a part; return its path. Raises OSError."""
    while True:
        path = f"{folder(state)}/{name}"
        try:
            if isinstance(content, str):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                try:
                    write_all(descriptor, content.encode())
                finally:
                    os.close(descriptor)
            else:
                write_whole(path, content)
            return path
        except FileNotFoundError:
            continue  # the last file was just removed, and its folder too


def take(path: str) -> dict | None:  # type: ignore[type-arg]
    """Read and remove the file; return None if it does not exist any more."""
    content = read_whole(path)
    remove(path)
    return content


def remove(path: str) -> None:
    """Remove a file, and its folder once that is empty."""
    for step, what in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
        try:
            step(what)
        except OSError:
            continue


def forget(folder: str) -> None:
    """Remove the secret files of a part that has ended; its logs and its end stay until the server has them."""
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return
    try:
        remove_all(top, GIVEN)
    finally:
        os.close(top)
