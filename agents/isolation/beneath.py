"""What a job can write, touched without being led astray: by handles, beneath a folder, with the rights of its user.

A job may at any moment put a link, a pipe or another folder in the place of what it owns. So an agent that is root

- goes by path only where the stages' user can change nothing (:func:`anchor`), and makes folders there itself;
- opens all else through a :class:`Folder`: with openat2(2) where the kernel has it and else step by step, following no
  link, and with that user's rights only;
- removes what a job left without going into it by path (:func:`remove`).

Standard library only: the shim imports it.
"""

import ctypes
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Opening a pipe must not block, and opening a terminal must not make it the controlling one.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
MAX_DEPTH = 64
NOBODY = 65534
_MAX_LINKS = 40
_BATCH = 1000
_MANY = 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.setfsuid.restype = _libc.setfsgid.restype = ctypes.c_uint32
_libc.setfsuid.argtypes = _libc.setfsgid.argtypes = (ctypes.c_uint32,)
_NOBODYS = 0xFFFFFFFF  # no id: the kernel answers the present one and changes nothing


class FileRights:
    """The rights of a user to files, for the thread that enters this context; without a uid, those of the process.

    The kernel keeps one user per thread for access to files (setfsuid(2), made for file servers such as NFS's); with it
    root's privileges to bypass permissions are dropped. The groups are those of the process: an agent has those of the
    stages' user (:meth:`agents.isolation.run_as.RunAs.take_groups`), and no others are accepted here.

    Not for the main thread of an agent: changing its rights resets the signal it gets when its parent dies.
    """

    __slots__ = ("gid", "groups", "uid")

    def __init__(self, uid: int | None = None, gid: int | None = None, groups: "tuple[int, ...]" = ()) -> None:
        self.uid = None if uid == os.geteuid() else uid
        self.gid = gid if gid is not None else uid
        self.groups = groups

    def __enter__(self) -> "FileRights":
        if self.uid is None or self.gid is None:
            return self
        if foreign := set(os.getgroups()) - {self.gid, *self.groups}:
            raise PermissionError(errno.EPERM, f"this process has groups that uid {self.uid} has not: {foreign}")
        if _libc.setfsuid(_NOBODYS) != os.geteuid():
            raise PermissionError(errno.EPERM, "this thread has another user's rights already")
        _libc.setfsgid(self.gid)
        _libc.setfsuid(self.uid)
        if (_libc.setfsuid(_NOBODYS), _libc.setfsgid(_NOBODYS)) != (self.uid, self.gid):
            self.__exit__()
            raise PermissionError(errno.EPERM, f"the rights of uid {self.uid} were not given")
        return self

    def __exit__(self, *_: object) -> None:
        if self.uid is not None:
            _libc.setfsuid(os.geteuid())
            _libc.setfsgid(os.getegid())

    @property
    def is_private(self) -> bool:
        """Return whether other users are kept out of this user's files: it is neither the agent's own nor nobody."""
        return self.uid not in (None, NOBODY)

    @property
    def mode(self) -> int:
        """Return the mode of folders that are created for this user."""
        return 0o700 if self.is_private else 0o755

    def may_change(self, status: os.stat_result) -> bool:
        """Return whether this user could get the right to create, rename and remove entries of a folder."""
        if self.uid is None:
            return False
        mode = status.st_mode
        return (
            self.uid in (0, status.st_uid)
            or bool(mode & stat.S_IWOTH)
            or (bool(mode & stat.S_IWGRP) and status.st_gid in (self.gid, *self.groups))
        )

    def may_replace(self, above: os.stat_result, status: os.stat_result) -> bool:
        """Return whether this user could replace ``status``, an entry of the folder ``above``."""
        if not self.may_change(above):
            return False
        return not (above.st_mode & stat.S_ISVTX) or self.uid in (0, above.st_uid, status.st_uid)


OWN = FileRights()


def anchor(path: str, rights: FileRights = OWN) -> tuple[str, list[str]]:
    """Split ``path`` into the real path of the last folder that this user cannot replace, and the rest.

    Links in the first part belong to an operator and are followed. The rest begins with what does not exist, or what
    the user may replace. The first part cannot be moved by the user, so it may be used as a path.
    """
    here, above = "/", os.lstat("/")
    rest = _split(path)[::-1]
    links = 0
    while rest:
        name = rest.pop()
        if name == "..":
            here = os.path.dirname(here)
            above = os.lstat(here)
            continue
        step = os.path.join(here, name)
        try:
            status = os.lstat(step)
        except (FileNotFoundError, PermissionError):
            rest.append(name)
            break
        if rights.may_replace(above, status):
            rest.append(name)
            break
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(step)
            if target.startswith("/"):
                here, above = "/", os.lstat("/")
            rest += _split(target)[::-1]
            continue
        here, above = step, status
    return here, rest[::-1]


def _split(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def make(path: str, rights: FileRights = OWN) -> None:
    """Create a folder at an absolute path, owned by ``rights`` if it is new; folders on the way to it belong to the
    agent.

    If that user could change the way, or the agent may not write there (a disk that maps root to nobody), the folder
    and the way are created with the user's rights only. Raises OSError that names the path.
    """
    try:
        here, rest = anchor(path, rights)
        if not rest:
            return _give_to_project_user(here, rights)
        if not rights.may_change(os.lstat(here)) and ".." not in rest:
            try:
                return _make_ours(here, rest, rights)
            except PermissionError:
                if rights.uid is None:
                    raise
        with rights:
            os.makedirs(os.path.join(here, *rest), rights.mode, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno or 0, error.strerror, path) from error


def _make_ours(here: str, rest: list[str], rights: FileRights) -> None:
    top = os.open(here, FOLDER)
    try:
        for name in rest:
            try:
                os.mkdir(name, 0o755, dir_fd=top)
                is_new = True
            except FileExistsError:
                is_new = False  # another part of the stage came first
            top, above = os.open(name, FOLDER, dir_fd=top), top
            os.close(above)
        if is_new and rights.uid is not None:
            _give_open(top, rights)
    finally:
        os.close(top)


def _give_to_project_user(path: str, rights: FileRights) -> None:
    """Give a folder of *nobody* to its project's user: the agent created it before projects had users of their own."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not rights.is_private or os.lstat(path).st_uid != NOBODY:
        return
    folder = os.open(path, FOLDER)
    try:
        if os.fstat(folder).st_uid == NOBODY:
            _give_open(folder, rights)
    finally:
        os.close(folder)


def _give_open(folder: int, rights: FileRights) -> None:
    assert rights.uid is not None, "a user is told"
    os.fchown(folder, rights.uid, rights.gid if rights.gid is not None else -1)
    os.fchmod(folder, rights.mode)


def steps(path: str) -> list[str]:
    """Return the steps of a relative path that stays below its start. Raises OSError for any other."""
    found = path.split("/")
    if any(step in ("", ".", "..") or "\0" in step for step in found):
        raise OSError(errno.EINVAL, "does not stay in its folder", path)
    return found


def regular(path: str, at: int | None = None) -> int:
    """Open a regular file for reading: no link, no pipe, nothing that would block. Raises OSError."""
    return _regular(os.open(path, FILE, dir_fd=at), path)


def _regular(descriptor: int, path: str) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return descriptor


# openat2(2), the same number on every machine that Linux calls 64-bit today; its flags RESOLVE_BENEATH,
# RESOLVE_NO_MAGICLINKS and RESOLVE_NO_SYMLINKS.
_OPENAT2 = 437
_RESOLVE = 0x08 | 0x02 | 0x04
_TRIES = 3
_lacks_openat2 = os.uname().machine == "alpha"


def _open_at_once(folder: int, path: str, flags: int) -> int | None:
    """Open a path below ``folder`` with one system call that follows no link and stays below it (openat2).

    Returns None if the kernel lacks it (before 5.6, or a container that blocks it) or cannot tell because of a
    concurrent rename; the caller then goes step by step. Raises OSError.
    """
    global _lacks_openat2
    if _lacks_openat2:
        return None
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _RESOLVE)
    for _ in range(_TRIES):
        found = _libc.syscall(_OPENAT2, folder, os.fsencode(path), how, ctypes.sizeof(how))
        if found >= 0:
            return int(found)
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            break
    if error in (errno.ENOSYS, errno.E2BIG) or (error == errno.EPERM and not _answers(folder)):
        _lacks_openat2 = True
        return None
    if error in (errno.EAGAIN, errno.EINTR, errno.ENAMETOOLONG):
        return None
    raise OSError(error, os.strerror(error), path)


def _answers(folder: int) -> bool:
    """Return whether openat2 is allowed: some sandboxes fail every unknown system call with EPERM."""
    how = (ctypes.c_uint64 * 3)(FOLDER | os.O_CLOEXEC, 0, _RESOLVE)
    found = _libc.syscall(_OPENAT2, folder, b".", how, ctypes.sizeof(how))
    if found >= 0:
        os.close(found)
    return bool(found >= 0)


class Folder:
    """An open folder that its user can write to. All that is opened through it is below it and readable by that user.

    The path to the folder is also walked with that user's rights, so it may lead through links. Raises OSError if the
    folder itself is none, or is a link.
    """

    def __init__(self, path: str, rights: FileRights = OWN) -> None:
        self.path = path
        self.rights = rights
        with rights:
            self.handle = os.open(path, FOLDER)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def _enter(self, names: list[str]) -> int:
        """Return a handle of a folder below, opened with the user's rights; the caller closes it."""
        if names and (found := _open_at_once(self.handle, "/".join(names), FOLDER)) is not None:
            return found
        here = os.dup(self.handle)
        try:
            for name in names:
                here, above = os.open(name, FOLDER, dir_fd=here), here
                os.close(above)
        except OSError:
            os.close(here)
            raise
        return here

    def open(self, path: str) -> int:
        """Return a regular file below, opened for reading. Raises OSError."""
        *above, name = steps(path)
        with self.rights:
            if (found := _open_at_once(self.handle, path, FILE)) is not None:
                return _regular(found, path)
            here = self._enter(above)
            try:
                return regular(name, here)
            finally:
                os.close(here)

    def status(self, path: str) -> os.stat_result:
        """Return the status of an entry, without following a link; of the folder if ``path`` is empty. Raises
        OSError."""
        if not path:
            return os.fstat(self.handle)
        *above, name = steps(path)
        with self.rights:
            here = self._enter(above)
            try:
                return os.stat(name, dir_fd=here, follow_symlinks=False)
            finally:
                os.close(here)

    def entries(self, path: str = "", most: int | None = None) -> list[tuple[str, os.stat_result]]:
        """Return the names in the folder, or in one below; ``most`` of them at most. Raises OSError."""
        found: list[tuple[str, os.stat_result]] = []
        with self.rights:
            here = self._enter(steps(path) if path else [])
            try:
                with os.scandir(here) as listed:
                    for entry in listed:
                        if most is not None and len(found) >= most:
                            break
                        try:
                            found.append((entry.name, entry.stat(follow_symlinks=False)))
                        except FileNotFoundError:
                            continue
            finally:
                os.close(here)
        return sorted(found, key=_by_name)

    def walk(
        self, start: str = "", depth: int = MAX_DEPTH, most: int | None = None, careful: bool = True
    ) -> "Iterator[tuple[str, os.stat_result]]":
        """Yield every regular file below ``start`` by its path, down to ``depth`` folders; no links or pipes.

        With ``careful`` a folder that cannot be read or lies deeper raises OSError, otherwise it is skipped. With
        ``most``, so many entries of a folder are read, and a few times as many in total, of any kind; then the walk
        ends, or raises OSError if it is ``careful``.
        """
        rest, seen = [start], 0
        while rest:
            path = rest.pop()
            try:
                entries = self.entries(path, most)
            except OSError:
                if careful:
                    raise
                continue
            seen += 1 + len(entries)
            if most is not None and (seen > _MANY * most or (careful and len(entries) >= most)):
                if careful:
                    raise OSError(errno.EFBIG, f"holds more than {most} files and folders", path or self.path)
                return
            below = []
            for name, status in entries:
                place = f"{path}/{name}" if path else name
                if stat.S_ISREG(status.st_mode):
                    yield place, status
                elif stat.S_ISDIR(status.st_mode):
                    if place.count("/") < depth:
                        below.append(place)
                    elif careful:
                        raise OSError(errno.ELOOP, f"has more than {depth} folders in each other", place)
            rest += below[::-1]

    def remove(self, path: str) -> bool:
        """Remove a file or folder below with its content; return whether it is gone."""
        *above, name = steps(path)
        try:
            with self.rights:
                here = self._enter(above)
                try:
                    return remove(here, name)
                finally:
                    os.close(here)
        except OSError:
            return False


def _by_name(entry: tuple[str, os.stat_result]) -> str:
    return entry[0]


# -- giving up and giving away


def remove(top: int, name: str) -> bool:
    """Remove the entry of this name in the open folder ``top`` with its content; return whether it is gone.

    Links are removed, not followed. Mounted file systems stay with their content.
    """
    try:
        os.unlink(name, dir_fd=top)
        return True
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            return False
    try:
        folder = os.open(name, FOLDER, dir_fd=top)
        try:
            while _thin_out(folder, _Budget()):
                pass
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


class _Budget:
    """How many entries may still be removed in one turn."""

    __slots__ = ("left",)

    def __init__(self, left: int = 1 << 62) -> None:
        self.left = left


def thin(path: str, most: int) -> bool:
    """Remove about ``most`` entries of a folder of the agent; return True once nothing more can be removed.

    So a folder with very many files is removed in turns, between which other work is done. A folder that does not
    exist, or is a link, counts as empty.
    """
    try:
        folder = os.open(path, FOLDER)
    except OSError:
        return True
    budget = _Budget(most)
    try:
        while budget.left > 0:
            if not _thin_out(folder, budget):
                return True
    finally:
        os.close(folder)
    return False


def _thin_out(folder: int, budget: _Budget) -> bool:
    """Remove some of what is in a folder; return True if something was removed.

    The content of a subfolder is moved up before the subfolder is removed, so depth does not matter, and a mount point,
    which cannot be moved, is not entered.
    """
    went = 0
    for name, is_folder in _some(folder):
        if budget.left <= 0:
            break
        try:
            if is_folder:
                went += _move_up(folder, name, budget)
            else:
                os.unlink(name, dir_fd=folder)
                went += 1
                budget.left -= 1
        except OSError:
            continue
    return went > 0


def _move_up(folder: int, name: str, budget: _Budget) -> int:
    """Move the folders in ``folder`` next to it and remove it; return how many entries were removed or moved."""
    own = _fresh()
    os.rename(name, own, src_dir_fd=folder, dst_dir_fd=folder)
    here = os.open(own, FOLDER, dir_fd=folder)
    went = 0
    try:
        _open_up(here)
        before = -1
        while went > before and budget.left > 0:
            before = went
            for inner, is_folder in _some(here):
                try:
                    if is_folder:
                        _lift(here, inner, folder)
                    else:
                        os.unlink(inner, dir_fd=here)
                except OSError:
                    continue
                went += 1
                budget.left -= 1
    finally:
        os.close(here)
    try:
        os.rmdir(own, dir_fd=folder)
    except OSError:
        return went
    budget.left -= 1
    return went + 1


def _lift(here: int, name: str, above: int) -> None:
    own = _fresh()
    try:
        os.rename(name, own, src_dir_fd=here, dst_dir_fd=above)
    except PermissionError:
        # A user other than root may move only a folder that it may write; its owner may change that.
        inner = os.open(name, FOLDER, dir_fd=here)
        try:
            _open_up(inner)
        finally:
            os.close(inner)
        os.rename(name, own, src_dir_fd=here, dst_dir_fd=above)


def _open_up(folder: int) -> None:
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)


def _fresh() -> str:
    return f".going-{os.urandom(8).hex()}"


def _some(folder: int) -> list[tuple[str, bool]]:
    found = []
    with os.scandir(folder) as listed:
        for entry in listed:
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
            if len(found) >= _BATCH:
                break
    return found


def give(path: str, mode: int, rights: FileRights) -> None:
    """Open a file or folder that only the agent could access so far, and give it to its user; its content keeps its
    owner.

    Call it last: from then on the user may put anything in there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fchmod(descriptor, mode)
        if rights.uid is not None:
            os.fchown(descriptor, rights.uid, rights.gid if rights.gid is not None else -1)
    finally:
        os.close(descriptor)
