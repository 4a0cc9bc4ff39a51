"""A task's own view of its host: processes of others are hidden, shared memory is private, devices that it did not
claim cannot be opened. Standard library only: the shim imports it.

A mount namespace is created in the forked child before it gives up root. Changes in it apply to the task and all its
processes, and end with the last of them. File systems that the host mounts later appear in it too. The task cannot undo
it: it is not root, and in a user namespace of its own these mounts are locked.

Sources: mount_namespaces(7), proc(5) on ``hidepid`` (an option of each mount since Linux 5.8), mount(2).
"""

import ctypes
import errno
import os

from agents.isolation.prctl import libc
from agents.supervisor import procfs

SHARED_MEMORY = "/dev/shm"
_NEW_MOUNTS, _NEW_IPC = 0x00020000, 0x08000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
_HIDES_PER_MOUNT = (5, 8)


def enter(view: dict) -> None:  # type: ignore[type-arg]
    """Give this process its own view.

    ``shm_bytes`` is the size of its shared memory (0: half of the host's memory), ``closed`` are device files that
    cannot be opened any more, ``mounts`` folders with whether nothing can be written there, each before those in it.
    Raises OSError; then nothing may be run.
    """
    _check(libc.unshare(_NEW_MOUNTS | _NEW_IPC), "unshare")
    _mount("", "/", "", _REC | _SLAVE)
    if os.path.isdir(SHARED_MEMORY):
        told = f"mode=1777,size={view['shm_bytes']}" if view.get("shm_bytes") else "mode=1777"
        _mount("tmpfs", os.path.realpath(SHARED_MEMORY), "tmpfs", _NOSUID | _NODEV, told)
    for path in view.get("closed", ()):
        try:
            _mount(path, path, "", _BIND)
        except FileNotFoundError:
            continue  # it was removed or repartitioned since the agent looked
        _mount("", path, "", _BIND | _REMOUNT | _NODEV)
    for path, is_readonly in view.get("mounts", ()):
        _mount(path, path, "", _BIND | _REC)
        _mount("", path, "", _BIND | _REMOUNT | _NOSUID | _NODEV | (_RDONLY if is_readonly else 0))
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "hidepid=2")


def join(pid: int, born: int) -> None:
    """Give this process the view of another process. Raises OSError."""
    spaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("ipc", "mnt")]
    if procfs.start_time(pid) != born:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(pid))
    for space in spaces:
        _check(libc.setns(space, 0), "setns")
        os.close(space)


def why_not() -> str:
    """Return why tasks cannot have their own view here; empty if they can. Tried in a child; call it before there
    are threads."""
    release = [int(piece) for piece in os.uname().release.split("-")[0].split(".")[:2] if piece.isdigit()]
    if os.geteuid() != 0:
        return "only root makes mount namespaces"
    if tuple(release) < _HIDES_PER_MOUNT:
        return "this kernel cannot hide processes for one task alone"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter({"shm_bytes": 1 << 20, "closed": ["/dev/null"]})
        except OSError as error:
            os.write(writer, str(error).encode()[:400])
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
            os.write(writer, b"it could not be tried")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as told:
        return told.read().decode(errors="replace")


def shared_memory_bytes(pid: int) -> int:
    """Return the bytes in the shared memory of a task with its own view; 0 once that process is gone."""
    try:
        told = os.statvfs(f"/proc/{pid}/root{SHARED_MEMORY}")
    except OSError:
        return 0
    return (told.f_blocks - told.f_bfree) * told.f_frsize


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() if word else None for word in (source, target, kind, data)]
    _check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), target)


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
