"""One scan of a folder: files by relative path, and the few bytes of them that a reader asks for.

Standard library only. Links are not followed and not listed, so a job that writes the folder cannot misdirect the scan.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agents.decode import Undecodable, parse
from agents.isolation.beneath import OWN, FileRights, Folder

MAX_DEPTH: Final = 12
MAX_FILES: Final = 50_000
MAX_TEXT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Leaf:
    """One file. ``modified_ns`` is by the clock of the file system, and is compared with its neighbours only."""

    size: int
    modified_ns: int = 0


class Tree:
    """Files by path relative to the folder, with ``/`` as separator; ``""`` is the folder itself.

    ``is_cut`` tells that there is more than was scanned.

    ``read(path, offset, length)`` returns bytes of a file, fewer at its end; it raises OSError if the file is gone.
    """

    def __init__(
        self, leaves: Mapping[str, Leaf], read: Callable[[str, int, int], bytes], is_cut: bool = False
    ) -> None:
        self.leaves = leaves
        self.is_cut = is_cut
        self._read = read
        self._folders: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
        for path in leaves:
            folder, name = _split(path)
            self._folder(folder)[1].add(name)

    def _folder(self, path: str) -> tuple[set[str], set[str]]:
        if path not in self._folders:
            self._folders[path] = (set(), set())
            above, name = _split(path)
            self._folder(above)[0].add(name)
        return self._folders[path]

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the subfolders with at least one file somewhere below."""
        return sorted(self._folders.get(path, (set(), set()))[0])

    def files(self, path: str = "") -> list[str]:
        return sorted(self._folders.get(path, (set(), set()))[1])

    def has_folder(self, path: str) -> bool:
        return path in self._folders

    def below(self, path: str) -> list[str]:
        """Return every file below a folder, by its path from the top."""
        if not path:
            return list(self.leaves)
        found: list[str] = []
        rest = [path]
        while rest:
            here = rest.pop()
            folders, files = self._folders.get(here, ((), ()))
            found += [join(here, name) for name in sorted(files)]
            rest += [join(here, name) for name in sorted(folders, reverse=True)]
        return found

    def every_folder(self) -> list[str]:
        """Return all folders, each before its subfolders."""
        return sorted(self._folders, key=lambda path: (path.count("/") + bool(path), path))

    def bytes(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file; empty if it is gone or cannot be read."""
        try:
            return self._read(path, offset, length)
        except OSError:
            return b""

    def text(self, path: str) -> str:
        return self.bytes(path, 0, 4096).decode(errors="replace").strip()

    def json(self, path: str) -> Any:
        """Return the content of a JSON file; None if it is missing, truncated or too long."""
        leaf = self.leaves.get(path)
        if leaf is None or leaf.size > MAX_TEXT:
            return None
        try:
            return parse(self.bytes(path, 0, leaf.size))
        except Undecodable:
            return None


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def look(root: str, rights: FileRights = OWN) -> Tree:
    """Scan a folder; empty if there is none. At most MAX_FILES files, MAX_DEPTH folders deep."""

    def read(path: str, offset: int, length: int) -> bytes:
        with Folder(root, rights) as folder:
            descriptor = folder.open(path)
            try:
                return os.pread(descriptor, length, offset)
            finally:
                os.close(descriptor)

    leaves: dict[str, Leaf] = {}
    is_cut = False
    with contextlib.suppress(OSError), Folder(root, rights) as folder:
        for path, status in folder.walk(depth=MAX_DEPTH, most=MAX_FILES, careful=False):
            leaves[path] = Leaf(status.st_size, status.st_mtime_ns)
            if len(leaves) >= MAX_FILES:
                is_cut = True
                break
    return Tree(leaves, read, is_cut)
