"""Sends files as a tar stream and takes one, in bounded memory. Whoever sends one is not trusted.

A stream from a job may hold anything. Nothing of it is written outside the one place that was asked for: names are
walked from there, folder by folder, without following links; links that lead out, devices and pipes are left out;
ownership and set-user-id bits are not taken.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from switchyard.problem import SwitchyardError

BLOCK: Final = tarfile.BLOCKSIZE
PIECE_BYTES: Final = 256 << 10
LONGEST_NAME: Final = 4096
LARGEST_EXTENSION: Final = 64 << 10
LARGEST_REST: Final = 1 << 20
MOST_ENTRIES: Final = 1_000_000
MOST_TOLD: Final = 20
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CopyRefused(SwitchyardError):
    """A stream holds what is not taken, or is no tar stream; what came before it is there."""


@dataclass(slots=True)
class Copied:
    """What came through: numbers, and the names of what was left out (the first of them)."""

    files: int = 0
    size_bytes: int = 0
    left_out: int = 0
    told: list[str] = field(default_factory=list)

    def leave_out(self, name: str, why: str) -> None:
        self.left_out += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{name}: {why}")


def take(read: Callable[[int], bytes], asked: str, to: Path, *, most_bytes: int) -> Copied:
    """Take the file or folder ``asked`` from a tar stream and write it as ``to``; its parent exists.

    ``read(n)`` returns ``n`` bytes, or fewer at the end. ``asked`` is the only first part of names that is taken.
    Raises :class:`CopyRefused`.
    """
    held = os.open(to.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _Taking(read, asked, to.name, held, most_bytes).run()
    finally:
        os.close(held)


class _Taking:
    """One stream on its way to ``name`` in the open folder ``parent``."""

    def __init__(self, read: Callable[[int], bytes], asked: str, name: str, parent: int, most_bytes: int) -> None:
        self._read_some, self._asked, self._name, self._parent = read, asked, name, parent
        self._left_bytes, self._copied = most_bytes, Copied()
        self._folders: dict[tuple[str, ...], tarfile.TarInfo] = {}

    def run(self) -> Copied:
        for count, member in enumerate(self._members()):
            if count >= MOST_ENTRIES:
                raise CopyRefused(f"it has more than {MOST_ENTRIES} entries; copy parts of it")
            self._take(member)
        # A folder that its owner may not write to is made so when it is full; the innermost first.
        for parts, member in sorted(self._folders.items(), key=lambda each: len(each[0]), reverse=True):
            with self._folder(parts) as folder:
                os.fchmod(folder, member.mode & 0o777)
                _set_time(folder, member)
        return self._copied

    def _read(self, size: int) -> bytes:
        content = self._read_some(size)
        if len(content) < size:
            raise CopyRefused("the stream ends in the middle")
        return content

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members; what a member holds is read before the next one is asked for."""
        more: dict[str, str] = {}
        while True:
            head = self._read(BLOCK)
            if not any(head):
                break
            try:
                member = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            except tarfile.TarError as error:
                raise CopyRefused(f"this is no tar stream: {error}") from None
            if member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE):
                found = _records(self._extension(member))
                more |= found if member.type != tarfile.XGLTYPE else {}
            elif member.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                key = "path" if member.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                more[key] = self._extension(member).split(b"\0")[0].decode("utf-8", "surrogateescape")
            else:
                _extend(member, more)
                more = {}
                yield member
        # What fills up the last record of the archive.
        if len(self._read_some(LARGEST_REST)) == LARGEST_REST:
            raise CopyRefused("the stream goes on after its end")

    def _extension(self, member: tarfile.TarInfo) -> bytes:
        if not 0 <= member.size <= LARGEST_EXTENSION:
            raise CopyRefused("the stream has a head that is too large")
        return self._read(_whole_blocks(member.size))[: member.size]

    def _take(self, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if member.isreg():
            self._file(parts, member)
        elif member.isdir():
            with self._folder(parts):
                self._folders[parts] = member
        elif member.issym():
            self._link(parts, member)
        elif member.islnk():
            self._second_name(parts, self._parts(member.linkname))
        elif member.type in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            self._copied.leave_out(member.name, "a device or a pipe")
        else:
            raise CopyRefused(f"{member.name!r} is of a kind that is not taken")

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the way to a member from the open folder: first the name that it gets here."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
            raise CopyRefused(f"{name[:200]!r} leads out of what was asked for")
        if not parts or parts[0] != self._asked:
            raise CopyRefused(f"{name[:200]!r} is not what was asked for")
        return (self._name, *parts[1:])

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open a folder, and make it and those above it where they are missing. Follows no link."""
        held = os.dup(self._parent)
        try:
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=held)
                try:
                    inner = os.open(part, FOLDER, dir_fd=held)
                except OSError as error:
                    raise CopyRefused(f"{'/'.join(parts)!r} is no folder here: {error.strerror}") from None
                os.close(held)
                held = inner
            yield held
        finally:
            os.close(held)

    @contextmanager
    def _new(self, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        """Give an open folder and a free name in it; what lies there afterwards replaces what had the right name."""
        with self._folder(parts[:-1]) as folder:
            name = f".{secrets.token_hex(8)}.yard"
            try:
                yield folder, name
                try:
                    os.replace(name, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                except OSError as error:
                    raise CopyRefused(f"{'/'.join(parts)!r} cannot be replaced: {error.strerror}") from None
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    def _file(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        self._left_bytes -= member.size
        if member.size < 0 or self._left_bytes < 0:
            raise CopyRefused("it is larger than --most; give a larger one, or copy parts of it")
        with self._new(parts) as (folder, name):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                left = member.size
                while left:
                    content = self._read(min(left, PIECE_BYTES))
                    left -= len(content)
                    view = memoryview(content)
                    while view:
                        view = view[os.write(file, view) :]
                self._read(_whole_blocks(member.size) - member.size)
                os.fchmod(file, member.mode & 0o777)
                _set_time(file, member)
            finally:
                os.close(file)
        self._copied.files += 1
        self._copied.size_bytes += member.size

    def _link(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        if not stays_inside(member.linkname, len(parts) - 2):
            self._copied.leave_out(member.name, f"a link out of what was asked for, to {member.linkname[:200]!r}")
            return
        with self._new(parts) as (folder, name):
            os.symlink(member.linkname, name, dir_fd=folder)

    def _second_name(self, parts: tuple[str, ...], first: tuple[str, ...]) -> None:
        with self._folder(first[:-1]) as source, self._new(parts) as (folder, name):
            try:
                if not stat.S_ISREG(os.stat(first[-1], dir_fd=source, follow_symlinks=False).st_mode):
                    raise CopyRefused(f"{'/'.join(first)!r} is no file, and has no second name")
                os.link(first[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise CopyRefused(f"{'/'.join(first)!r} is not there, and has no second name") from None


def stays_inside(target: str, depth: int) -> bool:
    """Whether a link leads to something inside, from a folder that is ``depth`` folders below the outermost.

    ``..`` may come first only: after a name, which may be a link itself, it would lead elsewhere than it says.
    """
    if not target or target.startswith("/") or "\0" in target or len(os.fsencode(target)) > LONGEST_NAME:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return up <= depth and ".." not in parts[up:]


def give(write: Callable[[bytes], object], source: Path, name: str) -> Copied:
    """Write the file or folder ``source`` to a tar stream under ``name``. Links stay links; devices are left out."""
    copied = Copied()

    def judge(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            copied.leave_out(member.name, "a device or a pipe")
            return None
        copied.files += not member.isdir()
        copied.size_bytes += member.size if member.isreg() else 0
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(mode="w|", fileobj=_Writer(write), bufsize=PIECE_BYTES, format=tarfile.GNU_FORMAT) as stream:
        stream.add(source, name, filter=judge)
    return copied


class _Writer(io.RawIOBase):
    """A file that hands on what is written to it."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, content: Any) -> int:
        self._write(bytes(content))
        return len(content)


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _set_time(file: int, member: tarfile.TarInfo) -> None:
    with suppress(OverflowError, OSError, ValueError):
        os.utime(file, (member.mtime, member.mtime))


def _records(content: bytes) -> dict[str, str]:
    """Return the records of a pax head: each is ``LENGTH KEY=VALUE`` and a line break, which LENGTH counts too."""
    found: dict[str, str] = {}
    while content:
        told, _, _ = content.partition(b" ")
        size = int(told) if told.isdigit() and len(told) < 10 else 0
        record, content = content[len(told) + 1 : size - 1], content[size:]
        key, equals, value = record.partition(b"=")
        if size < 5 or not equals:
            raise CopyRefused("the stream has a head that cannot be read")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    return found


def _extend(member: tarfile.TarInfo, more: dict[str, str]) -> None:
    """Take the longer name, link and size from what stood before a member."""
    member.name = more.get("path", member.name)
    member.linkname = more.get("linkpath", member.linkname)
    if "size" in more:
        if not (more["size"].isdecimal() and len(more["size"]) < 20):
            raise CopyRefused("the stream has a size that cannot be read")
        member.size = int(more["size"])
    if any(key.startswith("GNU.sparse") for key in more):
        raise CopyRefused(f"{member.name[:200]!r} is of a kind that is not taken")
